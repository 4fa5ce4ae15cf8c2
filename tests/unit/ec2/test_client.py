"""What a call to EC2 that gets no answer, or finds no identity, is taken for."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hatchway.backends import ec2_client
from hatchway.backends.ec2_client import Ec2Clients, Place
from hatchway.backends.ec2_errors import Ec2Refused, Ec2Unreachable, ec2_error
from hatchway.errors import SpawnCode, TransientSpawnError
from tests.support.aws import IDENTITY
from tests.support.fake_ec2.cloud import FakeEc2, running_ec2
from tests.support.fake_ec2.specs import REGION


@pytest.fixture
def cloud() -> Iterator[FakeEc2]:
    with running_ec2(boots=False) as cloud:
        yield cloud


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No AWS identity, wherever the SDK looks for one."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


async def test_an_endpoint_where_nobody_listens_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ec2_client, "ATTEMPTS", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        clients = Ec2Clients()

        with pytest.raises(Ec2Unreachable):
            await clients.at(Place(REGION, f"http://127.0.0.1:{taken.getsockname()[1]}")).call("describe_instances")

    clients.close()


async def test_an_identity_that_comes_later_is_found_without_a_restart(
    cloud: FakeEc2, nobody: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metadata service that hiccups looks just like a worker without an identity: the next call asks again."""
    clients = Ec2Clients()
    client = clients.at(Place(REGION, cloud.url))

    with pytest.raises(Ec2Refused, match="no AWS credentials") as raised:
        await client.call("describe_instances")
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    answer = await client.call("describe_instances")
    clients.close()

    meant = ec2_error(raised.value)
    assert answer["Reservations"] == []
    assert isinstance(meant, TransientSpawnError)
    assert meant.code is SpawnCode.AUTH_DENIED
