"""The worker's AWS identity: found late, by each set of clients for itself, and never in the SDK's shared session."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest

from hatchway.aws import AwsClients, AwsUnavailable, NoAwsIdentity, aws_errors
from hatchway.backends.event_aws import AwsDeliveries
from hatchway.backends.event_targets import SqsTarget, parse_target
from hatchway.config.event_schema import ProvisioningTarget
from hatchway.config.schema import SecretsConfig
from hatchway.errors import SecretUnavailable, SpawnCode, TransientSpawnError
from hatchway.events import ScaleDown
from hatchway.model import ScaleDownReason
from hatchway.secrets.resolver import AwsOnce, Purpose, SecretResolver
from tests.support.aws import IDENTITY, REGION, Refusing

VALUE = "the value"


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No AWS identity, wherever the SDK looks for one."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def ssm() -> Iterator[str]:
    """The Parameter Store with one parameter, whatever it is called."""
    answer = json.dumps({"Parameter": {"Name": "p", "Type": "String", "Value": VALUE}})
    with Refusing(400, "", times=0, then=answer) as server:
        yield server.endpoint


def identified(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)


def test_clients_that_were_asked_for_before_there_was_an_identity_have_it_once_there_is_one(
    ssm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance's metadata service hiccups; a token file of web identity is mounted late."""
    clients = AwsClients()

    with pytest.raises(NoAwsIdentity, match="no AWS credentials"), aws_errors():
        clients.ssm(REGION, ssm).get_parameter(Name="p")
    identified(monkeypatch)
    answer = clients.ssm(REGION, ssm).get_parameter(Name="p")

    assert answer["Parameter"]["Value"] == VALUE


def test_a_worker_without_an_identity_may_have_one_later() -> None:
    assert issubclass(NoAwsIdentity, AwsUnavailable)


async def test_a_secret_that_no_identity_was_there_for_is_read_by_the_next_attempt(
    ssm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = {"aws": {"type": "aws-ssm", "region": REGION, "endpointUrl": ssm, "env": True}}
    config, once = SecretsConfig.model_validate({"contexts": contexts}), AwsOnce()

    with pytest.raises(SecretUnavailable, match="no AWS credentials"):
        await SecretResolver(config, {}, once).resolve("aws:p", field="env.P", purpose=Purpose.env)
    identified(monkeypatch)
    secret = await SecretResolver(config, {}, once).resolve("aws:p", field="env.P", purpose=Purpose.env)

    assert secret.reveal() == VALUE


def test_the_sdks_own_session_which_no_two_threads_may_share_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    identified(monkeypatch)
    ready = threading.Barrier(4)

    def make(clients: AwsClients) -> list[Any]:
        ready.wait(10)
        return [clients.ssm(REGION), clients.sqs(REGION), clients.ssm(REGION)]

    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(make, [AwsClients() for _ in range(4)]))

    assert boto3.DEFAULT_SESSION is None
    assert all(first is again for first, _, again in made)
    assert len({id(clients[0]) for clients in made}) == 4


async def test_an_event_that_no_identity_was_there_for_is_sent_again() -> None:
    queue = f"sqs:https://sqs.{REGION}.amazonaws.com/123456789012/agents"
    target, deliveries = parse_target(queue), AwsDeliveries()
    event = ScaleDown(scaler_name="s", agent_id="a", reason=ScaleDownReason.DRAIN, request_id="r")
    assert isinstance(target, SqsTarget)

    with pytest.raises(TransientSpawnError, match="no AWS credentials") as raised:
        await deliveries.send(target, event, ProvisioningTarget(scale_up=queue))
    deliveries.close()

    assert raised.value.code is SpawnCode.AUTH_DENIED


@pytest.mark.parametrize(
    ("named", "region"),
    [
        ({"AWS_REGION": "eu-west-1"}, "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-2"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-2"),
    ],
    ids=["as containers are told", "as the SDK has it", "both"],
)
def test_the_region_is_read_from_where_the_advice_says(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, str], region: str
) -> None:
    identified(monkeypatch)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in named.items():
        monkeypatch.setenv(name, value)

    assert AwsClients().sqs().meta.region_name == region
