"""ECR: its registries by their names and no others, one password for all spawns, renewed before it ends."""

from __future__ import annotations

import asyncio
import base64
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from hatchway.aws import AwsClients
from hatchway.errors import AuthError, AuthUnavailable
from hatchway.registry.ecr import RENEW_BEFORE, EcrHost, EcrLogins, NoIdentity, ecr_host

A = "123456789012"
HOSTS: list[tuple[str, EcrHost | None]] = [
    (f"{A}.dkr.ecr.eu-central-1.amazonaws.com", EcrHost(A, "eu-central-1")),
    (f"{A}.dkr.ecr.us-east-1.amazonaws.com", EcrHost(A, "us-east-1")),
    (f"{A}.DKR.ECR.us-east-1.amazonaws.COM", EcrHost(A, "us-east-1")),
    (f"{A}.dkr.ecr.us-gov-west-1.amazonaws.com", EcrHost(A, "us-gov-west-1")),
    (f"{A}.dkr.ecr.ap-southeast-7.amazonaws.com", EcrHost(A, "ap-southeast-7")),
    (f"{A}.dkr.ecr-fips.us-east-1.amazonaws.com", EcrHost(A, "us-east-1", fips=True)),
    (f"{A}.dkr.ecr.cn-north-1.amazonaws.com.cn", EcrHost(A, "cn-north-1")),
    (f"{A}.dkr.ecr.cn-northwest-1.amazonaws.com.cn", EcrHost(A, "cn-northwest-1")),
    (f"{A}.dkr-ecr.us-west-2.on.aws", EcrHost(A, "us-west-2")),
    (f"{A}.dkr-ecr-fips.us-west-2.on.aws", EcrHost(A, "us-west-2", fips=True)),
    (f"{A}.dkr-ecr.cn-north-1.on.amazonwebservices.com.cn", EcrHost(A, "cn-north-1")),
    (f"{A}.dkr.ecr.eusc-de-east-1.amazonaws.eu", EcrHost(A, "eusc-de-east-1")),
    (f"{A}.dkr.ecr.us-iso-east-1.c2s.ic.gov", EcrHost(A, "us-iso-east-1")),
    (f"{A}.dkr.ecr.us-isob-east-1.sc2s.sgov.gov", EcrHost(A, "us-isob-east-1")),
    # other registries, and names that look like one
    ("ghcr.io", None),
    ("docker.io", None),
    ("public.ecr.aws", None),
    ("amazonaws.com", None),
    ("dkr.ecr.us-east-1.amazonaws.com", None),
    (f"{A}.dkr.ecr.us-east-1.amazonaws.com.evil.example", None),
    (f"evil.{A}.dkr.ecr.us-east-1.amazonaws.com", None),
    (f"evil-{A}.dkr.ecr.us-east-1.amazonaws.com", None),
    (f"{A}.evil-dkr.ecr.us-east-1.amazonaws.com", None),
    (f"{A}.dkr.ecr.us-east-1.evil-amazonaws.com", None),
    (f"{A}.dkr.ecr.us-east-1.amazonaws.evil.com", None),
    (f"{A}.dkr.ecr.us-east-1.evil.amazonaws.com", None),
    (f"{A}.dkr.ecr.evil.amazonaws.com", None),
    (f"{A}.dkr.ecr.us-east-1@evil.amazonaws.com", None),
    (f"{A}.dkr.ecr.us-east-1.amazonaws.com:443", None),
    (f"{A}.dkr.ecr.us-east-1.amazonaws.com.", None),
    (f"{A}.dkr.ecr.us-east-1.amazonaws.com\n", None),
    (f"{A}xdkr.ecr.us-east-1.amazonaws.com", None),
    (f"{A}.dkrxecr.us-east-1.amazonaws.com", None),
    (f"{A}.dkr.ecr.us-east-1.amazonawsxcom", None),
    ("12345678901.dkr.ecr.us-east-1.amazonaws.com", None),
    ("1234567890123.dkr.ecr.us-east-1.amazonaws.com", None),
    ("12345678901a.dkr.ecr.us-east-1.amazonaws.com", None),
    ("１２３４５６７８９０１２.dkr.ecr.us-east-1.amazonaws.com", None),
    # a region of one part of AWS under another one's domain
    (f"{A}.dkr.ecr.us-east-1.amazonaws.com.cn", None),
    (f"{A}.dkr.ecr.cn-north-1.amazonaws.com", None),
    (f"{A}.dkr.ecr.us-iso-east-1.amazonaws.com", None),
    (f"{A}.dkr-ecr.us-east-1.amazonaws.com", None),
    (f"{A}.dkr.ecr.us-east-1.on.aws", None),
]
REGISTRY, HOST = f"{A}.dkr.ecr.eu-central-1.amazonaws.com", EcrHost(A, "eu-central-1")
NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Ecr(AwsClients):
    """ECR of every region: counts how often it is asked, and answers what it is told to."""

    def __init__(self, *, lasts: timedelta = timedelta(hours=12), error: Exception | None = None) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.lasts = lasts
        self.error = error
        self.now = NOW
        self.held = threading.Event()
        self.held.set()

    def ecr(self, region: str, *, fips: bool = False) -> Any:
        self.region = region
        return self

    def get_authorization_token(self) -> dict[str, Any]:
        self.held.wait(10)
        self.asked.append(self.region)
        if self.error:
            raise self.error
        token = base64.b64encode(f"AWS:password-{len(self.asked)}".encode()).decode()
        return {"authorizationData": [{"authorizationToken": token, "expiresAt": self.now + self.lasts}]}


@pytest.mark.parametrize(("registry", "host"), HOSTS)
def test_a_registry_of_ecr_is_known_by_its_whole_name(registry: str, host: EcrHost | None) -> None:
    assert ecr_host(registry) == host


async def test_a_password_serves_all_registries_of_its_region_until_it_is_renewed() -> None:
    ecr = Ecr()
    logins = EcrLogins(ecr, now=lambda: ecr.now)

    first = await logins.login(REGISTRY, HOST)
    other = await logins.login(f"{'9' * 12}.dkr.ecr.eu-central-1.amazonaws.com", EcrHost("9" * 12, "eu-central-1"))
    elsewhere = await logins.login(REGISTRY, EcrHost(A, "us-east-1"))

    assert (first.username, first.token, other.token, elsewhere.token) == ("AWS", *["password-1"] * 2, "password-2")
    assert other.registry_host.startswith("9")
    assert first.expires_at == NOW + timedelta(hours=12)
    assert ecr.asked == ["eu-central-1", "us-east-1"]
    assert first.secret_values == {"password-1"}


@pytest.mark.scenario("S32")
@pytest.mark.parametrize(
    ("left", "renewed"),
    [
        (timedelta(seconds=30), True), (timedelta(0), True), (-timedelta(hours=1), True),
        (RENEW_BEFORE, True), (RENEW_BEFORE + timedelta(seconds=1), False), (timedelta(hours=11), False),
    ],
)  # fmt: skip
async def test_a_password_near_its_end_is_renewed(left: timedelta, renewed: bool) -> None:
    ecr = Ecr()
    logins = EcrLogins(ecr, now=lambda: ecr.now)
    await logins.login(REGISTRY, HOST)

    ecr.now += timedelta(hours=12) - left
    again = await logins.login(REGISTRY, HOST)

    assert again.token == ("password-2" if renewed else "password-1")


async def test_a_password_that_comes_expired_is_used_once_and_not_kept() -> None:
    """A clock that is hours off must not stop every pull; the registry has the last word."""
    ecr = Ecr(lasts=-timedelta(days=3650))
    logins = EcrLogins(ecr, now=lambda: ecr.now)

    tokens = [(await logins.login(REGISTRY, HOST)).token for _ in range(2)]

    assert tokens == ["password-1", "password-2"]


async def test_a_hundred_spawns_ask_once() -> None:
    ecr = Ecr()
    ecr.held.clear()
    logins = EcrLogins(ecr, now=lambda: ecr.now)
    asking = [asyncio.create_task(logins.login(REGISTRY, HOST)) for _ in range(100)]
    await asyncio.sleep(0)
    ecr.held.set()

    tokens = {auth.token for auth in await asyncio.gather(*asking)}

    assert (tokens, len(ecr.asked)) == ({"password-1"}, 1)


async def test_a_hundred_spawns_wait_for_one_failure_and_not_for_one_after_the_other() -> None:
    """While AWS is away each question takes its full time; whoever comes later asks anew."""
    ecr = Ecr(error=EndpointConnectionError(endpoint_url="https://ecr.example"))
    ecr.held.clear()
    logins = EcrLogins(ecr, now=lambda: ecr.now)
    asking = [asyncio.create_task(logins.login(REGISTRY, HOST)) for _ in range(100)]
    await asyncio.sleep(0)
    ecr.held.set()

    failures = await asyncio.gather(*asking, return_exceptions=True)
    ecr.error = None

    assert {type(failure) for failure in failures} == {AuthUnavailable}
    assert len(ecr.asked) == 1
    assert (await logins.login(REGISTRY, HOST)).token == "password-2"


@pytest.mark.parametrize("token", [5, None, "é", "///", base64.b64encode(b"\xff").decode()])
async def test_a_password_that_cannot_be_read_is_said_so(token: Any) -> None:
    class Garbled(Ecr):
        def get_authorization_token(self) -> Any:
            return {"authorizationData": [{"authorizationToken": token}]}

    ecr = Garbled()

    with pytest.raises(AuthError, match="without a password that can be read"):
        await EcrLogins(ecr, now=lambda: ecr.now).login(REGISTRY, HOST)


async def test_a_spawn_that_is_cancelled_takes_no_password_from_those_who_wait_with_it() -> None:
    ecr = Ecr()
    ecr.held.clear()
    logins = EcrLogins(ecr, now=lambda: ecr.now)
    first, second = (asyncio.create_task(logins.login(REGISTRY, HOST)) for _ in range(2))
    await asyncio.sleep(0)

    first.cancel()
    await asyncio.wait([first])
    ecr.held.set()

    assert (await second).token == "password-1"
    assert len(ecr.asked) == 1


def refusal(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "password-0"}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        "GetAuthorizationToken",
    )


@pytest.mark.parametrize(
    ("error", "consequence", "words"),
    [
        (NoCredentialsError(), NoIdentity, "no AWS credentials"),
        (refusal("AccessDeniedException"), AuthError, "ecr:GetAuthorizationToken"),
        (refusal("ThrottlingException"), AuthUnavailable, "limits how often"),
        (refusal("ServerException", 500), AuthUnavailable, "failed on its side"),
    ],
)
async def test_what_ecr_says_instead_of_a_password_is_told_by_its_kind_and_asked_again(
    error: Exception, consequence: type[AuthError], words: str
) -> None:
    ecr = Ecr(error=error)
    logins = EcrLogins(ecr, now=lambda: ecr.now)

    with pytest.raises(AuthError, match=words) as refused:
        await logins.login(REGISTRY, HOST)
    ecr.error = None

    assert type(refused.value) is consequence
    assert "password-0" not in str(refused.value)
    assert (await logins.login(REGISTRY, HOST)).token == "password-2"
