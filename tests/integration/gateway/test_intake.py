"""What the gateway does with requests that no agent sends, and what its log says of any of them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from hatchway.gateway import intake
from hatchway.store.claims import Claims
from tests.support.door import Door, OpenDoor, nonce, redeemed, refusal, spawned
from tests.support.lab import Lab

MARKER = "marker-value-5e0c7f"
REDEEM = "/v1/claims/redeem"
JSON = {"Content-Type": "application/json"}


async def chunks(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // 1024):
        yield b" " * 1024


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_64_kib_is_refused(door: Door, chunked: bool) -> None:
    body = chunks(80 * 1024) if chunked else b" " * (64 * 1024 + 1)

    answer = await door.http.post(door.url + REDEEM, content=body, headers=JSON)

    assert refusal(answer) == (413, "too_large")
    assert (await door.http.get(f"{door.url}/healthz")).status_code == 200


async def test_a_body_of_64_kib_is_read(door: Door) -> None:
    body = json.dumps({"claim_code": "x" * 43, "nonce": nonce()}).encode().ljust(64 * 1024)

    assert refusal(await door.http.post(door.url + REDEEM, content=body, headers=JSON)) == (403, "claim_refused")


async def test_a_body_that_does_not_arrive_is_not_waited_for(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "BODY_TIMEOUT_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(door.url.rsplit(":", 1)[1]))

    head = "POST /v1/claims/redeem HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{"
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.read(), 10)

    assert answer.startswith(b"HTTP/1.1 408 ")
    writer.close()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"claim_code": marker}', b"\xff\xfe", b"[" * 60_000, b'{"claim_code": "\\ud800", "nonce": "x"}'],
    ids=["empty", "cut", "bare-word", "not-utf-8", "deep", "surrogate"],
)
async def test_what_is_not_json_is_refused_in_one_form(door: Door, content: bytes) -> None:
    answer = await door.http.post(door.url + REDEEM, content=content, headers=JSON)

    assert refusal(answer)[0] in (400, 422)
    assert "marker" not in answer.text


@pytest.mark.parametrize("media_type", ["application/x-www-form-urlencoded", "text/plain", ""])
async def test_only_json_is_taken(door: Door, media_type: str) -> None:
    answer = await door.http.post(door.url + REDEEM, content=b"{}", headers={"Content-Type": media_type})

    assert refusal(answer) == (415, "not_json")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("claims/redeem", {"nonce": "n" * 32}, "claim_code"),
        ("claims/redeem", {"claim_code": MARKER * 20, "nonce": "n" * 32}, "claim_code"),
        ("claims/redeem", {"claim_code": [MARKER], "nonce": "n" * 32}, "claim_code"),
        ("claims/redeem", {"claim_code": f"{MARKER} with blanks", "nonce": "n" * 32}, "claim_code"),
        ("claims/redeem", {"claim_code": "c" * 43, "nonce": MARKER}, "nonce"),
        ("claims/redeem", {"claim_code": "c" * 43, "nonce": "0123456789abcdef0123456789abcde"}, "nonce"),
        ("claims/redeem", {"claim_code": "c" * 43}, "nonce"),
        ("claims/redeem", [MARKER], "the body"),
        ("agents/register", {}, "registration_id"),
        ("agents/register", {"registration_id": f"{MARKER}/{MARKER}"}, "registration_id"),
        ("agents/register", {"registration_id": MARKER, "agent_version": MARKER * 50}, "agent_version"),
        ("agents/heartbeat", {"registration_id": "r", "busy": MARKER}, "busy"),
        ("agents/complete", {"registration_id": "r", "result": MARKER}, "result"),
        ("agents/complete", {"registration_id": "r", "result": "failed", "exit_code": MARKER}, "exit_code"),
        ("agents/complete", {"registration_id": "r", "result": "failed", "exit_code": 2**31}, "exit_code"),
    ],
)
async def test_a_wrong_field_is_named_and_its_value_is_not_echoed(
    door: Door, path: str, body: object, field: str
) -> None:
    answer = await door.http.post(f"{door.url}/v1/{path}", json=body, headers={"Authorization": f"Bearer {'t' * 43}"})

    assert refusal(answer) == (422, "invalid_request")
    assert answer.json()["message"].startswith(f"{field}: ")
    assert MARKER not in answer.text


async def test_unknown_fields_are_ignored(lab: Lab, door: Door) -> None:
    agent = await spawned(lab)

    answer = await door.post("claims/redeem", None, claim_code=agent.code, nonce=nonce(), newer_field=1)

    assert answer.status_code == 200


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", REDEEM, 405)])
async def test_unknown_paths_and_methods_answer_in_the_same_form(
    door: Door, method: str, path: str, status: int
) -> None:
    answer = await door.http.request(method, door.url + path)

    assert refusal(answer)[0] == status


@pytest.mark.parametrize("behind_tls_proxy", [False, True])
async def test_the_docs_are_there_only_where_nobody_else_can_reach_them(
    open_door: OpenDoor, behind_tls_proxy: bool
) -> None:
    door = await open_door(behind_tls_proxy=behind_tls_proxy)

    statuses = [(await door.http.get(door.url + path)).status_code for path in ("/docs", "/openapi.json", "/redoc")]

    assert statuses == ([404, 404, 404] if behind_tls_proxy else [200, 200, 404])


async def test_a_bug_answers_500_and_its_log_has_no_secret(
    lab: Lab, door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await spawned(lab)

    async def broken(_claims: Claims, *hashes: str) -> None:
        raise KeyError(f"no such thing as {agent.code}")

    monkeypatch.setattr(Claims, "redeem", broken)
    with capture_logs() as logged, caplog.at_level(logging.DEBUG):
        answer = await door.redeem(agent.code)

    assert refusal(answer) == (500, "internal")
    bugs = [entry for entry in logged if entry["event"] == "gateway_bug"]
    assert [(b["error"], b["path"]) for b in bugs] == [("KeyError", REDEEM)]
    assert "in broken" in bugs[0]["frames"]
    assert agent.code not in json.dumps(logged) + caplog.text


@pytest.mark.scenario("S41")
async def test_a_whole_life_leaves_no_code_nonce_or_token_in_the_log(
    lab: Lab, door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    with capture_logs() as logged, caplog.at_level(logging.DEBUG):
        agent = await redeemed(lab, door)
        mine = nonce()
        answers = [
            await door.redeem(agent.code, mine),
            await door.register(agent.token),
            await door.heartbeat(agent.token),
            await door.register(agent.token, "process-2"),
            await door.complete(agent.token),
            await door.post("agents/register", agent.token, registration_id=agent.token + "/"),
            await door.post("claims/redeem", agent.token, claim_code=agent.code, nonce=agent.code[:8]),
            await door.http.get(f"{door.url}/v1/agents/{agent.token}?code={agent.code}"),
        ]

    assert [a.status_code for a in answers] == [403, 200, 200, 409, 200, 422, 422, 404]
    # The test's own client logs the URLs that it asks for.
    lines = [r.getMessage() for r in caplog.records if not r.name.startswith(("httpx", "httpcore"))]
    written = json.dumps([*logged, *lines], default=str) + "".join(a.text for a in answers)
    assert {"claim_redeemed", "claim_refused", "agent_registered", "agent_completed"} <= {e["event"] for e in logged}
    assert agent.code[:12] in written
    for secret in (agent.code, agent.token, mine):
        assert secret not in written
