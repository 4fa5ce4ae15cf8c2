"""The EC2 API, called in threads. The one place where its SDK is spoken.

Credentials come the SDK's own way: environment, profile, web identity or the worker's own instance role.
"""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import boto3
import botocore.loaders
import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.exceptions import ConnectionError as AwsConnectionError
from botocore.parsers import ResponseParserError

from hatchway.aws_answers import MIB, bound, why_no_answer
from hatchway.backends.ec2_errors import Ec2Error, Ec2Refused, Ec2Unreachable, is_about_capacity
from hatchway.config.ec2_schema import Ec2Scaler

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

CONNECT_S, READ_S, ATTEMPTS = 3, 10, 4
"""One call with its retries is over within a minute, whatever the network swallows; EC2 answers within two."""
ANSWER_S = 12.0
"""For an answer as a whole; READ_S is for each piece of it."""
MOST_ANSWER = 32 * MIB
"""Bytes; of a page of a thousand instances each has some 8 KiB, and 20 with every tag that there can be."""
THREADS = 16


@dataclass(frozen=True)
class Place:
    """A region, and its endpoint where that is not the region's own."""

    region: str
    endpoint_url: str | None = None

    @classmethod
    def of(cls, ec2: Ec2Scaler) -> Self:
        return cls(ec2.region, ec2.endpoint_url)

    def __str__(self) -> str:
        """As it stands in a ComputeRef's `endpoint`."""
        return self.region if self.endpoint_url is None else f"{self.region} {self.endpoint_url}"

    @classmethod
    def parse(cls, text: str) -> Self:
        region, _, url = text.partition(" ")
        return cls(region, url or None)


class Ec2Client:
    """One region's API. Each call raises Ec2Unreachable or Ec2Refused, and is over within a minute."""

    def __init__(self, place: Place, threads: ThreadPoolExecutor) -> None:
        self.place = place
        self._threads = threads
        self._made: EC2Client | None = None

    async def call(self, action: str, **parameters: Any) -> dict[str, Any]:
        """`action` is the SDK's name of it. A cancelled call goes on in its thread: what it asked for may happen."""
        call = functools.partial(self._call, action, parameters)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _call(self, action: str, parameters: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self._client(), action)(**parameters)
        except ClientError as e:
            said = e.response.get("Error", {})
            status = int(e.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
            raise Ec2Refused(action, said.get("Code"), str(said.get("Message", "")), status) from None
        except (NoCredentialsError, PartialCredentialsError):
            # A metadata service that hiccups looks just like a worker without an identity, so the next call asks again.
            raise Ec2Refused(
                action,
                "CredentialRetrievalError",
                "this worker has no AWS credentials: give it a role, a profile or keys",
                401,
            ) from None
        except CredentialRetrievalError as e:
            raise Ec2Refused(action, "CredentialRetrievalError", type(e).__name__, 401) from None
        except (AwsConnectionError, HTTPClientError) as e:
            raise Ec2Unreachable(f"EC2 in {self.place} did not answer {action} ({why_no_answer(e)})") from None
        except (ResponseParserError, LookupError, TypeError, ValueError, AttributeError) as e:  # a proxy's page, or so
            raise Ec2Unreachable(
                f"what answered {action} in EC2's place in {self.place} is not EC2, but maybe a proxy "
                f"({type(e).__name__})"
            ) from None
        except BotoCoreError as e:  # the SDK's own checks of what it was given: it quotes that, so its text stays here
            raise Ec2Refused(action, type(e).__name__, "the AWS SDK refused the call") from None
        return answer

    def _client(self) -> EC2Client:
        # Made in a thread, maybe in two at once, which costs the time of it and nothing else.
        if self._made is None:
            session = botocore.session.get_session()
            session.register_component("data_loader", _loader())
            if session.get_credentials() is None:
                raise NoCredentialsError  # a client that is made now would never have any
            made = boto3.session.Session(botocore_session=session).client(
                "ec2",
                region_name=self.place.region,
                endpoint_url=self.place.endpoint_url,
                config=Config(
                    connect_timeout=CONNECT_S,
                    read_timeout=READ_S,
                    retries={"mode": "adaptive", "total_max_attempts": ATTEMPTS},
                    max_pool_connections=THREADS,
                ),
            )
            bound(made, most=MOST_ANSWER, within_s=ANSWER_S)
            made.meta.events.register_first("needs-retry.ec2.RunInstances", _hear_out)
            self._made = made
        return self._made


def _hear_out(response: tuple[Any, dict[str, Any]] | None, **_: object) -> None:
    """EC2 answers a lack of capacity with a 500. For the SDK that is a fault of the service, so it would ask for the
    same offer again and again, for seconds, while the next one is there."""
    if response is not None and is_about_capacity(str(response[1].get("Error", {}).get("Code", ""))):
        response[0].status_code = 400


@functools.cache
def _loader() -> botocore.loaders.Loader:
    """Keeps what it has read: EC2's model takes most of a second, which each scaler's client would pay again."""
    return botocore.loaders.create_loader()


class Ec2Clients:
    """A client for each place, over one pool of threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="ec2")
        self._made: dict[Place, Ec2Client] = {}

    def at(self, place: Place) -> Ec2Client:
        return self._made.setdefault(place, Ec2Client(place, self._threads))

    def close(self) -> None:
        self._threads.shutdown(wait=False)


__all__ = ["Ec2Client", "Ec2Clients", "Ec2Error", "Place"]
