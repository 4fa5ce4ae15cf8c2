"""An `https:` target: what is sent and signed, where it may go, and a receiver that answers badly, or not at all."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from hatchway.backends import event, event_addresses, event_https
from hatchway.backends.base import Accepted
from hatchway.backends.event import EventBackend
from hatchway.backends.event_addresses import checked_addresses, parse_networks
from hatchway.backends.event_https import post_event
from hatchway.backends.event_targets import HttpsTarget, parse_target
from hatchway.errors import DestroyError, PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.event_signatures import BadSignature, verify
from hatchway.events import ScaleDown
from hatchway.metrics import Metrics
from hatchway.model import ScaleDownReason
from hatchway.secrets.secret import Secret
from tests.support.customer import CLAIM, FixedConfig, event_scaler, facts_of, fresh_agent_id, silent, spec_of
from tests.support.tls_receiver import (
    NAME,
    Answer,
    Receiver,
    a_receiver,
    answer,
    broken_off,
    endless,
    silence,
    trickling,
)

KEY = "signing-key-of-the-test-0123456789"
LOOPBACK = ["127.0.0.0/8"]


class Names:
    """DNS as a test has it: each look-up takes the next answer, and the last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[list[str]] = [["127.0.0.1"]]
        self.asked: list[str] = []
        monkeypatch.setattr(event_addresses, "_look_up", self._look_up)

    async def _look_up(self, host: str, port: int) -> list[Any]:
        self.asked.append(host)
        found = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in one], socket.SOCK_STREAM, 6, "", (one, port)) for one in found]


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncIterator[Receiver]:
    async with a_receiver(tmp_path) as one:
        yield one


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event, "PAUSE_S", 0.01)


def backend_of(temporal: Client, *targets: dict[str, Any], key: str = KEY) -> tuple[EventBackend, FixedConfig]:
    secrets = {"contexts": {"hooks": {"type": "env", "targets": [NAME, "127.0.0.1"]}}}
    config = FixedConfig.of(event_scaler(*targets, secrets=secrets), HATCHWAY_SECRET_KEY=key)
    return EventBackend("customers", temporal, config, Metrics.of(temporal)), config


def target_of(receiver: Receiver, **settings: Any) -> dict[str, Any]:
    return {
        "scaleUp": receiver.url, "signingSecret": "hooks:key", "caFile": str(receiver.ca_file),
        "allowAddresses": LOOPBACK, **settings,
    }  # fmt: skip


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


@pytest.mark.parametrize("filler", range(200, 320, 7))
async def test_a_receiver_that_quotes_its_event_gives_away_no_piece_of_the_claim(
    own: Client, names: Names, receiver: Receiver, filler: int
) -> None:
    """Wherever its answer is cut for people."""
    receiver.answers = [answer(409, ("x" * filler + CLAIM).encode())]
    backend, config = backend_of(own, target_of(receiver))

    with pytest.raises(PermanentSpawnError) as raised:
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert not any(CLAIM[n : n + 8] in str(raised.value) for n in range(len(CLAIM) - 8))


SLASHED = "signing-key/of+the/test-0123456789"
QUOTING = {
    "slashes, escaped as PHP does": json.dumps({"message": f"expected one by {SLASHED}"}).replace("/", "\\/"),
    "a plus, escaped as .NET does": json.dumps({"error": f"expected one by {SLASHED}"}).replace("+", "\\u002B"),
    "every character escaped, and cut": json.dumps({"message": "x" * 270 + "@"}).replace(
        "@", "".join(f"\\u{ord(c):04x}" for c in CLAIM)
    ),
    "under another name": json.dumps({"detail": f"expected one by {SLASHED}"}).replace("/", "\\/"),
    "deeper down": json.dumps({"errors": [{"detail": f"expected one by {SLASHED}"}]}).replace("+", "\\u002b"),
    "JSON in JSON": json.dumps({"message": json.dumps({"why": SLASHED}).replace("/", "\\/")}),
    "not read to its end": json.dumps({"message": f"expected one by {SLASHED} "}).replace("/", "\\/") + " " * 20_000,
    "at the end of what is read": " " * (16 * 1024 - 20) + CLAIM,
}


@pytest.mark.parametrize("body", QUOTING.values(), ids=QUOTING)
async def test_a_receiver_that_escapes_what_it_quotes_gives_away_no_piece_of_it(
    own: Client, names: Names, receiver: Receiver, body: str
) -> None:
    receiver.answers = [answer(401, body.encode())]
    backend, config = backend_of(own, target_of(receiver), key=SLASHED)

    with pytest.raises(PermanentSpawnError) as raised:
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert len(receiver.requests) == 1
    for secret in (CLAIM, SLASHED):
        assert not any(secret[n : n + 8] in str(raised.value) for n in range(len(secret) - 8))


async def test_a_host_that_no_connection_can_be_made_to_is_told_as_such(names: Names) -> None:
    target = parse_target("https://\u2603.example/up")
    assert isinstance(target, HttpsTarget)
    down = ScaleDown(
        scaler_name="customers", agent_id="scaler-1", reason=ScaleDownReason.IDLE, request_id="scaler-1:scale-down"
    )

    with pytest.raises(PermanentSpawnError, match="nobody can be asked at") as raised:
        await post_event(target, down, Secret(KEY), allowed=parse_networks(LOOPBACK), tls=ssl.create_default_context())

    assert raised.value.code is SpawnCode.INVALID_SPEC


@pytest.mark.parametrize("taken", [trickling, broken_off])
async def test_taken_is_taken_whatever_becomes_of_the_answers_body(
    own: Client, names: Names, receiver: Receiver, taken: Answer
) -> None:
    receiver.answers = [taken]
    backend, config = backend_of(own, target_of(receiver))

    await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert len(receiver.requests) == 1


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


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_followed_by_nobody(own: Client, names: Names, receiver: Receiver, status: int) -> None:
    receiver.answers = [answer(status, Location=f"https://{NAME}:{receiver.port}/elsewhere")]
    backend, config = backend_of(own, target_of(receiver))

    with pytest.raises(PermanentSpawnError, match="redirects are not followed"):
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert receiver.connections == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"message": "zone b is closed"}', "answered 409: zone b is closed"),
        (b'{"error": "zone b is closed"}', "answered 409: zone b is closed"),
        (b"zone b\nis \x1b[31mclosed", "answered 409: zone b is closed"),
        (b"[" * 12_000, r"answered 409: \[\[\["),
        (b"\xff\xfe", "answered 409"),
        (b"", "answered 409"),
    ],
)
async def test_a_receivers_refusal_is_the_spawns_with_its_words(
    own: Client, names: Names, receiver: Receiver, body: bytes, words: str
) -> None:
    receiver.answers = [answer(409, body)]
    backend, config = backend_of(own, target_of(receiver))

    with pytest.raises(PermanentSpawnError, match=words) as raised:
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert raised.value.code is SpawnCode.PROVISIONER_FAILED
    assert "/events" not in str(raised.value), "a path may hold a token"
    assert receiver.connections == 1


@pytest.mark.parametrize("status", [401, 403])
async def test_a_receiver_that_does_not_know_us_is_told_apart(
    own: Client, names: Names, receiver: Receiver, status: int
) -> None:
    receiver.answers = [answer(status)]
    backend, config = backend_of(own, target_of(receiver))

    with pytest.raises(PermanentSpawnError) as raised:
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert raised.value.code is SpawnCode.AUTH_DENIED


async def test_a_receiver_that_stumbles_is_told_again_under_the_same_id(
    own: Client, names: Names, receiver: Receiver
) -> None:
    receiver.answers = [answer(503), answer(500), answer(200)]
    backend, config = backend_of(own, target_of(receiver))

    await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert len(receiver.requests) == 3
    assert len({request.headers["hatchway-request-id"] for request in receiver.requests}) == 1


@pytest.mark.scenario("S38")
@pytest.mark.parametrize(("header", "pause"), [("7", 7), ("86400", 300), ("soon", None)])
async def test_a_receiver_that_asks_to_be_left_alone_is(
    own: Client, names: Names, receiver: Receiver, header: str, pause: int | None
) -> None:
    receiver.answers = [answer(429, Retry_After=header)]
    backend, config = backend_of(own, target_of(receiver))

    with pytest.raises(TransientSpawnError) as raised:
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert raised.value.code is SpawnCode.RATE_LIMITED
    assert raised.value.retry_after == (timedelta(seconds=pause) if pause else None)
    assert receiver.connections == (1 if pause else 3)


async def test_a_receiver_that_never_answers_holds_nobody_for_ever(
    own: Client, names: Names, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_https, "WHOLE_S", 0.3)
    receiver.answers = [silence]
    backend, config = backend_of(own, target_of(receiver))

    with pytest.raises(TransientSpawnError, match=r"did not answer within 0\.3 s"):
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)


async def test_an_answer_without_an_end_is_not_read_to_it(own: Client, names: Names, receiver: Receiver) -> None:
    receiver.answers = [endless]
    backend, config = backend_of(own, target_of(receiver))

    with pytest.raises(PermanentSpawnError, match=r"answered 400: x+…") as raised:
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert len(str(raised.value)) < 500


@pytest.mark.scenario("S04")
async def test_a_teardown_that_nobody_takes_is_no_end(own: Client, names: Names, receiver: Receiver) -> None:
    receiver.answers = [answer(500, b"out of order")]
    backend, config = backend_of(own, target_of(receiver))
    agent_id = fresh_agent_id()

    with pytest.raises(DestroyError, match="out of order"):
        await backend.destroy(agent_id, facts_of(config.scaler), ScaleDownReason.SHUTDOWN)
    receiver.answers = [answer(202)]

    assert await backend.destroy(agent_id, facts_of(config.scaler), ScaleDownReason.SHUTDOWN) == Accepted()


@pytest.mark.scenario("S07")
async def test_a_receiver_that_is_down_keeps_no_other_one_waiting(
    own: Client, names: Names, receiver: Receiver, tmp_path: Path
) -> None:
    down = target_of(receiver, scaleUp=f"https://{NAME}:1/events")
    backend, config = backend_of(own, down, target_of(receiver))
    agent_id = fresh_agent_id()

    with pytest.raises(TransientSpawnError, match=rf"https://{NAME}:1 cannot be reached"):
        await backend.spawn(spec_of(config.scaler, agent_id), silent)

    assert [json.loads(request.body)["agentId"] for request in receiver.requests] == [agent_id]


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
