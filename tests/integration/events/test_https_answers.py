"""An `https:` target whose receiver answers badly, or not at all."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from hatchway.backends import event, event_https
from hatchway.backends.base import Accepted
from hatchway.errors import DestroyError, PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.model import ScaleDownReason
from tests.integration.events.https_rig import Names, backend_of, target_of
from tests.support.customer import CLAIM, facts_of, fresh_agent_id, silent, spec_of
from tests.support.tls_receiver import (
    NAME,
    Answer,
    Receiver,
    answer,
    broken_off,
    endless,
    silence,
    trickling,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event, "PAUSE_S", 0.01)


@pytest.fixture
def own(temporal: Any) -> Client:
    client: Client = temporal.client
    return client


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


@pytest.mark.parametrize("taken", [trickling, broken_off])
async def test_taken_is_taken_whatever_becomes_of_the_answers_body(
    own: Client, names: Names, receiver: Receiver, taken: Answer
) -> None:
    receiver.answers = [taken]
    backend, config = backend_of(own, target_of(receiver))

    await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert len(receiver.requests) == 1


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
