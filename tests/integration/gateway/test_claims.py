"""POST /v1/claims/redeem."""

from __future__ import annotations

import asyncio

import httpx
import psycopg
import pytest
from psycopg import sql
from structlog.testing import capture_logs

from hatchway import metrics
from hatchway.client import connect
from hatchway.dev.ports import free_port
from hatchway.gateway import ratelimit
from hatchway.model import ProvisionState
from tests.support.door import Door, OpenDoor, nonce, redeemed, refusal, registered, spawned
from tests.support.lab import Lab

UNKNOWN = "x" * 43


async def test_a_claim_becomes_a_token_of_its_agent(lab: Lab, door: Door) -> None:
    agent = await spawned(lab)

    answer = await door.redeem(agent.code)

    assert answer.status_code == 200
    assert answer.json().keys() == {"agent_id", "token", "heartbeat_interval_s"}
    assert (answer.json()["agent_id"], answer.json()["heartbeat_interval_s"]) == (agent.id, 30)


async def test_the_same_code_and_nonce_give_the_same_token_at_any_gateway(
    lab: Lab, door: Door, open_door: OpenDoor
) -> None:
    agent, mine = await spawned(lab), nonce()
    other = await open_door()

    answers = [await at.redeem(agent.code, mine) for at in (door, other, door)]

    assert [a.status_code for a in answers] == [200, 200, 200]
    assert len({a.json()["token"] for a in answers}) == 1


@pytest.mark.scenario("S28")
async def test_a_claim_used_twice_at_once_has_one_success_and_one_refusal_both_counted(
    lab: Lab, open_door: OpenDoor
) -> None:
    port = free_port("127.0.0.1")
    client = await connect(
        target_host=lab.temporal.service_client.config.target_host,
        namespace=lab.temporal.namespace,
        runtime=metrics.runtime(f"127.0.0.1:{port}"),
    )
    first, second = await open_door(temporal=client), await open_door(temporal=client)
    agent = await spawned(lab)

    answers = await asyncio.gather(first.redeem(agent.code), second.redeem(agent.code))

    assert sorted(a.status_code for a in answers) == [200, 403]
    page = (await first.http.get(f"http://127.0.0.1:{port}/metrics")).text
    counted = [line for line in page.splitlines() if line.startswith("hatchway_claim_redemptions_total{")]
    assert sorted(('result="redeemed"' in c, c.rsplit(" ", 1)[1]) for c in counted) == [(False, "1"), (True, "1")]
    assert 'result="consumed"' in page


@pytest.mark.parametrize("why", ["unknown", "consumed", "registered", "expired"])
async def test_every_refusal_is_one_answer_and_the_log_tells_them_apart(lab: Lab, door: Door, why: str) -> None:
    code, with_nonce, reason = UNKNOWN, nonce(), why
    if why == "consumed":
        code = (await redeemed(lab, door)).code
    elif why == "registered":
        agent = await spawned(lab)
        code, reason = agent.code, "consumed"
        token = (await door.redeem(code, with_nonce)).json()["token"]
        assert (await door.register(token)).status_code == 200
    elif why == "expired":
        agent = await spawned(lab)
        code = agent.code
        await lab.reaches(agent.started, ProvisionState.AWAITING_ADOPTION)  # whose confirmation sets its deadline anew
        for statement in (
            "update scaler_pending_claims set expires_at = now() - interval '1 s' where agent_id = %s returning 1",
            "update scaler_spawning_agents set deadline_at = now() - interval '1 s' where agent_id = %s returning 1",
        ):
            assert await lab.db.fetch_value(statement, [agent.id]) == 1

    with capture_logs() as logged:
        answer = await door.redeem(code, with_nonce)

    assert refusal(answer) == (403, "claim_refused")
    assert answer.json() == (await door.redeem(UNKNOWN)).json()
    refused = [entry for entry in logged if entry["event"] == "claim_refused"]
    assert [(entry["reason"], entry["claim_prefix"]) for entry in refused] == [(reason, code[:12])]


async def test_refused_claims_are_limited_per_address_and_good_ones_are_not(lab: Lab, open_door: OpenDoor) -> None:
    door = await open_door(refused_redeems_per_minute=3)
    agents = [await spawned(lab) for _ in range(5)]
    assert [(await door.redeem(a.code)).status_code for a in agents] == [200] * 5

    statuses = [(await door.redeem(UNKNOWN)).status_code for _ in range(3)]
    limited = await door.redeem(UNKNOWN)

    assert statuses == [403] * 3
    assert refusal(limited) == (429, "rate_limited")
    assert 0 < int(limited.headers["Retry-After"]) <= 60
    transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    async with httpx.AsyncClient(transport=transport) as elsewhere:
        other = Door(door.url, elsewhere, door.stop)
        assert (await other.redeem(UNKNOWN)).status_code == 403


async def test_a_good_claim_is_redeemed_however_many_bad_ones_come_from_its_address(
    lab: Lab, open_door: OpenDoor
) -> None:
    """All agents of a machine share its address, and with every job that runs there."""
    door = await open_door(refused_redeems_per_minute=2)
    agent = await spawned(lab)

    guesses = [await door.redeem(UNKNOWN) for _ in range(4)]
    good, *others = await asyncio.gather(door.redeem(agent.code), *(door.redeem(UNKNOWN) for _ in range(10)))

    assert [answer.status_code for answer in guesses] == [403, 403, 429, 429]
    assert good.status_code == 200
    assert {answer.status_code for answer in others} == {429}


async def test_who_comes_behind_many_guesses_is_told_to_come_again_soon(
    lab: Lab, open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A good agent that had to wait a minute each time would have few tries before its deadline."""
    door = await open_door(refused_redeems_per_minute=1)
    agent = await spawned(lab)
    assert (await door.redeem(UNKNOWN)).status_code == 403
    with monkeypatch.context() as full:
        full.setattr(ratelimit, "MOST_WAITING", 0)
        turned_away = await door.redeem(agent.code)

    again = await door.redeem(agent.code)

    assert refusal(turned_away) == (429, "rate_limited")
    assert int(turned_away.headers["Retry-After"]) == ratelimit.COME_AGAIN_S
    assert again.status_code == 200


async def test_behind_a_proxy_the_limit_counts_the_agents_addresses(open_door: OpenDoor) -> None:
    door = await open_door(refused_redeems_per_minute=1, behind_tls_proxy=True)

    async def redeem_from(address: str) -> int:
        body = {"claim_code": UNKNOWN, "nonce": nonce()}
        headers = {"X-Forwarded-For": address}
        return (await door.http.post(f"{door.url}/v1/claims/redeem", json=body, headers=headers)).status_code

    assert [await redeem_from(a) for a in ("192.0.2.1", "192.0.2.2", "192.0.2.1")] == [403, 403, 429]


async def test_a_role_that_may_only_execute_the_gateway_s_functions_is_enough(
    lab: Lab, open_door: OpenDoor, module_database_url: str
) -> None:
    with psycopg.connect(module_database_url, autocommit=True) as admin:
        admin.execute("create role door_test login in role hatchway_gateway password 'only-for-this-test'")
    try:
        dsn = psycopg.conninfo.make_conninfo(module_database_url, user="door_test", password="only-for-this-test")
        door = await open_door(dsn=dsn)

        agent = await registered(lab, door)

        assert (await door.heartbeat(agent.token)).status_code == 200
        assert (await door.complete(agent.token)).status_code == 200
        assert (await lab.outcome(agent.started)).result == "succeeded"
        await door.stop()
    finally:
        with psycopg.connect(module_database_url, autocommit=True) as admin:
            admin.execute(sql.SQL("drop role {}").format(sql.Identifier("door_test")))
