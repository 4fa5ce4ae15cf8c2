"""Amazon ECR: its registries are known by their names, and its passwords live for twelve hours.

A password is asked for with the worker's own AWS identity, kept in this worker's memory, and renewed an hour before it
ends: a pull may take as long, and asks with it for every layer.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from hatchway.errors import AuthError, AuthUnavailable
from hatchway.registry.auth import RegistryAuth

if TYPE_CHECKING:
    from hatchway.aws import AwsClients

SOURCE = "worker's AWS identity"
RENEW_BEFORE = timedelta(hours=1)

# AWS's names of private registries: (domain, how its service part is written, what its regions begin with).
_DOMAINS = (
    ("amazonaws.com", "dkr.ecr", r"(?!cn-|us-iso|eu-iso|eusc-)"),
    ("amazonaws.com.cn", "dkr.ecr", r"(?=cn-)"),
    ("on.aws", "dkr-ecr", r"(?!cn-|us-iso|eu-iso|eusc-)"),
    ("on.amazonwebservices.com.cn", "dkr-ecr", r"(?=cn-)"),
    ("amazonaws.eu", "dkr.ecr", r"(?=eusc-)"),
    ("c2s.ic.gov", "dkr.ecr", r"(?=us-iso-)"),
    ("sc2s.sgov.gov", "dkr.ecr", r"(?=us-isob-)"),
    ("csp.hci.ic.gov", "dkr.ecr", r"(?=us-isof-)"),
    ("cloud.adc-e.uk", "dkr.ecr", r"(?=eu-isoe-)"),
)
_HOSTS = [
    re.compile(
        rf"(?P<account>[0-9]{{12}})\.{re.escape(service)}(?P<fips>-fips)?\."
        rf"(?P<region>{begins}[a-z]{{2,4}}(?:-[a-z]+)+-[0-9]{{1,2}})\.{re.escape(domain)}"
    )
    for domain, service, begins in _DOMAINS
]


@dataclass(frozen=True)
class EcrHost:
    """A private registry of ECR."""

    account: str
    region: str
    fips: bool = False


class NoIdentity(AuthError):
    """This worker has no AWS identity to ask with."""


def ecr_host(registry: str) -> EcrHost | None:
    """The private ECR registry of that name, or None for every other registry, look-alikes included."""
    for pattern in _HOSTS:
        if match := pattern.fullmatch(registry.lower()):
            return EcrHost(match["account"], match["region"], match["fips"] is not None)
    return None


class EcrLogins:
    """One worker's passwords for ECR. One AWS identity reads whatever it may, so there is one for each region."""

    def __init__(
        self,
        clients: AwsClients | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        recognise: Callable[[str], EcrHost | None] = ecr_host,
    ) -> None:
        self._clients = clients
        self._now = now
        self.recognise = recognise
        self._known: dict[tuple[str, bool], RegistryAuth] = {}
        self._asking: dict[tuple[str, bool], asyncio.Task[RegistryAuth]] = {}

    async def login(self, registry: str, host: EcrHost) -> RegistryAuth:
        """The credentials for `registry`, whose name is that of `host`.

        Raises NoIdentity, AuthError where AWS refuses, AuthUnavailable where it does not answer.
        """
        place = (host.region, host.fips)
        known = self._known.get(place)
        if known is None or not self._lasts(known):
            known = await asyncio.shield(self._asked_once(place, host))  # it goes on for whoever else waits for it
        return RegistryAuth(registry, known.username, known.token, source=SOURCE, expires_at=known.expires_at)

    def _lasts(self, known: RegistryAuth) -> bool:
        return known.expires_at is not None and known.expires_at - self._now() > RENEW_BEFORE

    def _asked_once(self, place: tuple[str, bool], host: EcrHost) -> asyncio.Task[RegistryAuth]:
        """The question that is under way, or a new one. A hundred spawns ask once, and share the failure as well: while
        AWS is away each question takes its full time, and one after the other would take that a hundred times."""
        asking = self._asking.get(place)
        if asking is None:
            asking = self._asking[place] = asyncio.create_task(self._asked(place, host))
            asking.add_done_callback(lambda done: self._over(place, done))
        return asking

    def _over(self, place: tuple[str, bool], done: asyncio.Task[RegistryAuth]) -> None:
        del self._asking[place]
        if not done.cancelled():
            done.exception()  # all who waited may have been cancelled: then nobody else looks at it

    async def _asked(self, place: tuple[str, bool], host: EcrHost) -> RegistryAuth:
        from hatchway.aws import in_aws_thread  # and only then: the AWS SDK is slow to import

        known = await in_aws_thread(self._ask, host)
        if self._lasts(known):
            self._known[place] = known
        return known

    def _ask(self, host: EcrHost) -> RegistryAuth:
        from hatchway.aws import AwsClients, AwsError, AwsUnavailable, NoAwsIdentity, aws_errors

        self._clients = self._clients or AwsClients()
        try:
            with aws_errors():
                answer = self._clients.ecr(host.region, fips=host.fips).get_authorization_token()
                given = [(data["authorizationToken"], data.get("expiresAt")) for data in answer["authorizationData"]]
        except NoAwsIdentity as e:
            raise NoIdentity(str(e)) from None
        except AwsUnavailable as e:
            raise AuthUnavailable(f"ECR in {host.region} gives no password now: {e}") from None
        except AwsError as e:
            raise AuthError(
                f"ECR in {host.region} gives no password: {e}; it needs ecr:GetAuthorizationToken"
            ) from None
        for encoded, expires_at in given:
            try:
                username, _, token = base64.b64decode(encoded).decode().partition(":")
            except (TypeError, ValueError):  # no text, no base64, no UTF-8
                break
            if username and token:
                return RegistryAuth("", username, token, source=SOURCE, expires_at=expires_at)
        raise AuthError(f"ECR in {host.region} answered without a password that can be read")
