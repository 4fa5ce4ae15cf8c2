"""Clients of AWS services, and what their refusals mean. Blocking, as the SDK is: call them in a thread.

Credentials come the SDK's own way (environment, profile, web identity, the instance's role), are kept and renewed by
it, and are never in a configuration of ours.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

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
    NoRegionError,
    PartialCredentialsError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
from botocore.exceptions import ConnectionError as AwsConnectionError
from botocore.parsers import ResponseParserError

from hatchway.aws_answers import MIB, bound, why_no_answer
from hatchway.errors import HatchwayError
from hatchway.printable import error_code

if TYPE_CHECKING:
    from mypy_boto3_ecr import ECRClient
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_secretsmanager import SecretsManagerClient
    from mypy_boto3_sns import SNSClient
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_ssm import SSMClient

T = TypeVar("T")

CONNECT_S, READ_S, ATTEMPTS = 2, 3, 3
"""One call, its retries included, is over within about 18 s, whatever the network swallows."""
MOST_ANSWER = MIB
"""Bytes; a secret and a parameter have some 64 KiB at most."""

_THROTTLED = frozenset(
    {
        "Throttling", "ThrottlingException", "ThrottledException", "TooManyRequestsException", "RequestLimitExceeded",
        "RequestThrottled", "RequestThrottledException", "SlowDown", "BandwidthLimitExceeded", "LimitExceededException",
    }
)  # fmt: skip
_DENIED = frozenset({"AccessDeniedException", "AccessDenied", "UnauthorizedOperation", "AuthFailure"})
_BAD_IDENTITY = frozenset(
    {
        "UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException", "SignatureDoesNotMatch",
        "ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "MissingAuthenticationToken",
    }
)  # fmt: skip


async def in_aws_thread(call: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking call in a thread that is kept for such: AWS that does not answer holds up nothing else."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, call, *arguments)


_THREADS = ThreadPoolExecutor(16, thread_name_prefix="aws")  # threads begin with the first call


class AwsError(HatchwayError):
    """AWS did not do what it was asked. `code` is its own word for it; `str()` ends a sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class AwsRefused(AwsError):
    """It answered no, and would again."""


class AwsDenied(AwsRefused):
    """This worker's AWS identity may not do that."""


class AwsUnavailable(AwsError):
    """It throttles, fails on its side or does not answer: trying again may help."""


class NoAwsIdentity(AwsUnavailable):
    """This worker has no AWS credentials, or a metadata service that does not answer: the SDK tells no difference."""


class AwsClients:
    """Clients by service, region and endpoint, each made once: making one reads megabytes of models. Thread-safe.

    None is made before there is an identity: it would never have one. Each call raises NoCredentialsError until then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: boto3.session.Session | None = None
        self._made: dict[tuple[Any, ...], Any] = {}

    def secrets_manager(self, region: str | None = None, endpoint: str | None = None) -> SecretsManagerClient:
        client: SecretsManagerClient = self._once("secretsmanager", region_name=region, endpoint_url=endpoint)
        return client

    def ssm(self, region: str | None = None, endpoint: str | None = None) -> SSMClient:
        client: SSMClient = self._once("ssm", region_name=region, endpoint_url=endpoint)
        return client

    def ecr(self, region: str, *, fips: bool = False) -> ECRClient:
        client: ECRClient = self._once("ecr", fips=fips, region_name=region)
        return client

    def sqs(self, region: str | None = None, endpoint: str | None = None) -> SQSClient:
        client: SQSClient = self._once("sqs", region_name=region, endpoint_url=endpoint)
        return client

    def sns(self, region: str | None = None, endpoint: str | None = None) -> SNSClient:
        client: SNSClient = self._once("sns", region_name=region, endpoint_url=endpoint)
        return client

    def events(self, region: str | None = None, endpoint: str | None = None) -> EventBridgeClient:
        client: EventBridgeClient = self._once("events", region_name=region, endpoint_url=endpoint)
        return client

    def _once(self, service: Any, *, fips: bool = False, **place: Any) -> Any:
        key = (service, fips, *place.values())
        # The SDK's clients may be shared between threads; its session, which makes them, may not.
        with self._lock:
            if key not in self._made:
                made = self._with_identity().client(service, config=_config(fips=fips), **place)
                bound(made, most=MOST_ANSWER, within_s=READ_S)
                self._made[key] = made
            return self._made[key]

    def _with_identity(self) -> boto3.session.Session:
        """A session of our own, since the SDK's default one is everybody's. Kept once it has found an identity."""
        if self._session is None:
            core = botocore.session.get_session()
            core.register_component("data_loader", _loader())
            if core.get_credentials() is None:
                raise NoCredentialsError
            # What services of AWS tell their containers, and every SDK but this one reads.
            if core.get_config_variable("region") is None and (region := os.environ.get("AWS_REGION")):
                core.set_config_variable("region", region)
            self._session = boto3.session.Session(botocore_session=core)
        return self._session


@functools.cache
def _loader() -> botocore.loaders.Loader:
    """Keeps the models that it has read, whichever session wanted them."""
    return botocore.loaders.create_loader()


def _config(*, fips: bool = False) -> Config:
    return Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        use_fips_endpoint=fips or None,
    )


@contextmanager
def aws_errors() -> Iterator[None]:
    """Turn what the SDK raises into AwsError. Never hands on its text: it quotes what it was given and got."""
    try:
        yield
    except ClientError as e:
        raise _refusal(e) from None
    except (NoCredentialsError, PartialCredentialsError):
        raise NoAwsIdentity("NoCredentials", "the worker has no AWS credentials") from None
    except (CredentialRetrievalError, TokenRetrievalError, UnauthorizedSSOTokenError) as e:
        raise AwsUnavailable(type(e).__name__, "the worker's AWS credentials could not be fetched") from None
    except NoRegionError:
        raise AwsRefused("NoRegion", "no AWS region is set: say `region` there, or AWS_REGION for the worker") from None
    except (AwsConnectionError, HTTPClientError) as e:
        raise AwsUnavailable(type(e).__name__, f"AWS did not answer ({why_no_answer(e)})") from None
    except BotoCoreError as e:
        raise AwsRefused(type(e).__name__, f"the AWS SDK refused the call ({type(e).__name__})") from None
    except (ResponseParserError, LookupError, TypeError, ValueError, AttributeError) as e:
        # A proxy's page, or some web server's. The SDK takes an answer apart without looking whether it is one.
        raise not_aws(type(e).__name__) from None


def not_aws(why: str) -> AwsUnavailable:
    """For an answer of 200 as well: without the service's own receipt nothing was taken."""
    return AwsUnavailable("NotAws", f"what answered there is not AWS, but maybe a proxy or a wrong endpointUrl ({why})")


def _refusal(error: ClientError) -> AwsError:
    code = error_code(error.response.get("Error", {}).get("Code"))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _THROTTLED or status == 429:
        return AwsUnavailable(code, f"AWS limits how often it is asked ({code})")
    if code in _DENIED:
        return AwsDenied(code, f"the worker's AWS identity may not ({code})")
    if code in _BAD_IDENTITY:
        return AwsDenied(code, f"AWS does not take the worker's credentials ({code})")
    if status >= 500:
        return AwsUnavailable(code, f"AWS failed on its side ({code})")
    return AwsRefused(code, f"AWS refused ({code})")
