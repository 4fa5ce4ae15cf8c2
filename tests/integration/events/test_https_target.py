"""An `https:` target: what is sent and signed, and where it may go."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from hatchway.backends import event, event_addresses
from hatchway.backends.base import Accepted
from hatchway.backends.event_addresses import checked_addresses, parse_networks
from hatchway.backends.event_https import post_event
from hatchway.backends.event_targets import HttpsTarget, parse_target
from hatchway.errors import PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.event_signatures import BadSignature, verify
from hatchway.events import ScaleDown
from hatchway.model import ScaleDownReason
from hatchway.secrets.secret import Secret
from tests.integration.events.https_rig import KEY, LOOPBACK, Names, backend_of, target_of
from tests.support.customer import CLAIM, FixedConfig, event_scaler, facts_of, fresh_agent_id, silent, spec_of
from tests.support.tls_receiver import (
    NAME,
    Receiver,
    a_receiver,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event, "PAUSE_S", 0.01)


@pytest.fixture
def own(temporal: Any) -> Client:
    client: Client = temporal.client
    return client


async def test_an_event_arrives_signed_for_the_name_and_only_once(
    own: Client, names: Names, receiver: Receiver
) -> None:
    backend, config = backend_of(own, target_of(receiver))
    agent_id = fresh_agent_id()

    await backend.spawn(spec_of(config.scaler, agent_id, mcpu=500, mem_bytes=1 << 30, job_id="job-1"), silent)
    gone = await backend.destroy(agent_id, facts_of(config.scaler), ScaleDownReason.DRAIN)

    assert gone == Accepted()
    up, down = receiver.requests
    assert up.line == "POST /events HTTP/1.1"
    assert up.headers["host"] == f"{NAME}:{receiver.port}"
    assert verify(up.headers, up.body, KEY) == "kici.scaler.scale-up"
    assert verify(down.headers, down.body, [KEY, "another-key-of-the-receivers"]) == "kici.scaler.scale-down"
    wanted = json.loads(up.body)
    assert (wanted["claimCode"], wanted["resources"]) == (CLAIM, {"cpus": 0.5, "memBytes": 1 << 30})
    assert json.loads(down.body)["reason"] == "drain"
    assert up.headers["hatchway-request-id"] == wanted["requestId"]


async def test_a_claim_is_sealed_for_a_receiver_with_a_key(own: Client, names: Names, receiver: Receiver) -> None:
    from hatchway.sealed_claims import new_claim_keys, open_claim

    private, public = new_claim_keys()
    backend, config = backend_of(own, target_of(receiver, claimKey=public))
    agent_id = fresh_agent_id()

    await backend.spawn(spec_of(config.scaler, agent_id), silent)

    assert CLAIM.encode() not in receiver.requests[0].body
    assert open_claim(json.loads(receiver.requests[0].body)["claimCode"], private, agent_id) == CLAIM


async def test_a_changed_body_is_no_genuine_event(own: Client, names: Names, receiver: Receiver) -> None:
    backend, config = backend_of(own, target_of(receiver))
    await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)
    request = receiver.requests[0]
    another_second = str(int(request.headers["hatchway-timestamp"]) - 1)

    for body, headers, now in (
        (request.body + b" ", request.headers, None),
        (request.body, {**request.headers, "hatchway-event": "kici.scaler.scale-down"}, None),
        (request.body, {**request.headers, "hatchway-timestamp": another_second}, None),
        (request.body, request.headers, time.time() + 301),
    ):
        with pytest.raises(BadSignature):
            verify(headers, body, KEY, now=now)


@pytest.mark.parametrize(
    ("addresses", "allowed"),
    [
        (["127.0.0.1"], []),
        (["127.0.0.1"], ["10.0.0.0/8"]),
        (["10.1.2.3"], LOOPBACK),
        (["192.168.0.10", "172.16.0.1"], []),
        (["169.254.169.254"], LOOPBACK),
        (["168.63.129.16"], []),
        (["100.100.100.200"], []),
        (["0.0.0.0"], LOOPBACK),  # noqa: S104 - a destination
        (["::1"], []),
        (["fe80::1"], []),
        (["fd00:ec2::254"], ["fc00::/8"]),
        (["::ffff:127.0.0.1"], []),
        (["::ffff:169.254.169.254"], LOOPBACK),
        (["64:ff9b::7f00:1"], []),
        (["2002:7f00:1::"], []),
        (["224.0.0.1"], []),
        (["64:ff9b:1::a9fe:a9fe"], []),
        (["::a9fe:a9fe"], []),
        (["::7f00:1"], []),
        (["::ffff:0:a9fe:a9fe"], []),
        (["fec0::1"], []),
        (["5f00::1"], []),
        (["fd20:ce::254"], []),
        (["fd00:c1::a9fe:a9fe"], []),
    ],
    ids=lambda value: ",".join(value) or "nothing",
)
async def test_a_name_that_leads_inside_is_connected_to_by_nobody(
    own: Client, names: Names, receiver: Receiver, addresses: list[str], allowed: list[str]
) -> None:
    names.answers = [addresses]
    backend, config = backend_of(own, target_of(receiver, allowAddresses=allowed))

    with pytest.raises(PermanentSpawnError, match="no address that events may be sent to"):
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert receiver.connections == 0


async def test_a_name_whose_servers_hang_holds_up_no_other_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them at once than this process has threads for everything else."""
    answers = threading.Event()

    def hanging(*_: Any, **__: Any) -> list[Any]:
        answers.wait(30)
        return []

    monkeypatch.setattr(event_addresses, "RESOLVE_S", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    stuck = [asyncio.create_task(checked_addresses("hanging.example", 443, [])) for _ in range(64)]
    await asyncio.wait(stuck)

    free = await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 5)
    answers.set()

    assert free == "free"
    assert {type(task.exception()) for task in stuck} == {TransientSpawnError}


def test_an_allowance_cannot_open_what_clouds_tell_their_machines() -> None:
    for network in ("fd00:c1::/32", "fd20::/16", "64:ff9b:1::/48"):
        with pytest.raises(ValueError, match="metadata"):
            parse_networks([network])


async def test_a_host_that_no_connection_can_be_made_to_is_told_as_such(names: Names) -> None:
    target = parse_target("https://\u2603.example/up")
    assert isinstance(target, HttpsTarget)
    down = ScaleDown(
        scaler_name="customers", agent_id="scaler-1", reason=ScaleDownReason.IDLE, request_id="scaler-1:scale-down"
    )

    with pytest.raises(PermanentSpawnError, match="nobody can be asked at") as raised:
        await post_event(target, down, Secret(KEY), allowed=parse_networks(LOOPBACK), tls=ssl.create_default_context())

    assert raised.value.code is SpawnCode.INVALID_SPEC


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    own: Client, names: Names, receiver: Receiver
) -> None:
    """A second look-up, which would lead elsewhere, is never made."""
    names.answers = [["127.0.0.1"], ["127.0.0.2"]]
    backend, config = backend_of(own, target_of(receiver, allowAddresses=["127.0.0.1/32"]))

    await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert names.asked == [NAME]
    assert receiver.connections == 1


async def test_of_several_addresses_only_those_that_may_be_reached_are_tried(
    own: Client, names: Names, receiver: Receiver
) -> None:
    names.answers = [["10.0.0.1", "127.0.0.9", "127.0.0.1"]]  # nobody listens on the second
    backend, config = backend_of(own, target_of(receiver))

    await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert receiver.connections == 1


async def test_no_proxy_of_the_workers_environment_sees_an_event(
    own: Client, names: Names, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    backend, config = backend_of(own, target_of(receiver))

    await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert receiver.connections == 1


async def test_a_certificate_for_another_name_is_not_trusted(own: Client, names: Names, tmp_path: Path) -> None:
    async with a_receiver(tmp_path, name="other.example.test") as other:
        backend, config = backend_of(own, target_of(other))

        with pytest.raises(PermanentSpawnError, match="certificate"):
            await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

        assert other.requests == []


async def test_a_certificate_of_an_unknown_authority_is_not_trusted(
    own: Client, names: Names, receiver: Receiver
) -> None:
    target = {key: value for key, value in target_of(receiver).items() if key != "caFile"}
    backend, config = backend_of(own, target)

    with pytest.raises(PermanentSpawnError, match="caFile"):
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert receiver.requests == []


async def test_a_target_may_be_an_address(own: Client, tmp_path: Path) -> None:
    async with a_receiver(tmp_path, name="127.0.0.1") as one:
        backend, config = backend_of(own, target_of(one, scaleUp=f"https://127.0.0.1:{one.port}/x"))

        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

        assert one.requests[0].headers["host"] == f"127.0.0.1:{one.port}"


@pytest.mark.parametrize(
    ("settings", "key", "words"),
    [
        ({"signingSecret": "hooks:absent"}, KEY, "signingSecret"),
        ({"signingSecret": "nobody:key"}, KEY, "no secret context"),
        ({}, "too-short", "shorter than 16 bytes"),
    ],
    ids=["absent", "unknown context", "weak"],
)
async def test_nothing_is_sent_that_cannot_be_signed(
    own: Client, names: Names, receiver: Receiver, settings: dict[str, Any], key: str, words: str
) -> None:
    backend, config = backend_of(own, target_of(receiver, **settings), key=key)

    with pytest.raises(PermanentSpawnError, match=words) as raised:
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert receiver.connections == 0
    assert key not in str(raised.value)


async def test_a_key_is_used_for_no_other_host_than_its_contexts(own: Client, names: Names, receiver: Receiver) -> None:
    backend, config = backend_of(own, target_of(receiver))
    contexts = {"hooks": {"type": "env", "targets": ["elsewhere.example.test"]}}
    config.config = FixedConfig.of(event_scaler(target_of(receiver), secrets={"contexts": contexts})).config

    with pytest.raises(PermanentSpawnError, match=f"may not be used for {NAME}"):
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert receiver.connections == 0
