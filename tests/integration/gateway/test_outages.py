"""Postgres or Temporal away: 503 with Retry-After within the limit, nothing lost, and work goes on afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import psycopg
import pytest

from hatchway.client import connect
from tests.support.door import Agent, Door, OpenDoor, redeemed, refusal, registered, spawned
from tests.support.lab import Lab
from tests.support.namespaces import PATIENCE, until
from tests.support.proxy import FaultProxy

PATIENCE_S = 1.5


@dataclass
class Faulty:
    """A gateway that has little patience and whose ways to its servers can be cut or hung."""

    door: Door
    patient: Door
    """Another one, which is straight at the servers: for what has to be there before."""
    postgres: FaultProxy
    temporal: FaultProxy


@pytest.fixture
def proxies(module_database_url: str, lab: Lab) -> Iterator[tuple[FaultProxy, FaultProxy]]:
    conninfo = psycopg.conninfo.conninfo_to_dict(module_database_url)
    host, port = lab.temporal.service_client.config.target_host.rsplit(":", 1)
    with (
        FaultProxy((str(conninfo["host"]), int(str(conninfo["port"])))) as postgres,
        FaultProxy((host, int(port))) as temporal,
    ):
        yield postgres, temporal


@pytest.fixture
async def faulty(
    proxies: tuple[FaultProxy, FaultProxy], module_database_url: str, lab: Lab, open_door: OpenDoor
) -> AsyncIterator[Faulty]:
    postgres, temporal = proxies
    dsn = psycopg.conninfo.make_conninfo(module_database_url, host="127.0.0.1", port=postgres.port)
    client = await connect(target_host=temporal.address, namespace=lab.temporal.namespace)
    door = await open_door(dsn=dsn, temporal=client, answer_timeout=PATIENCE_S)
    yield Faulty(door, await open_door(answer_timeout=PATIENCE), postgres, temporal)
    postgres.heal()
    temporal.heal()


async def _known_to(door: Door, agent: Agent) -> Agent:
    """The same agent, once this gateway has heard of it too."""

    async def heard() -> bool:
        return (await door.heartbeat(agent.token)).status_code == 200

    await until(heard, what="a heartbeat")
    return agent


@pytest.mark.parametrize("fault", ["cut", "hang"])
@pytest.mark.scenario("S37")
async def test_without_postgres_every_call_is_503_and_afterwards_it_works(lab: Lab, faulty: Faulty, fault: str) -> None:
    door = faulty.door
    agent, new = await _known_to(door, await registered(lab, faulty.patient)), await spawned(lab)

    getattr(faulty.postgres, fault)()
    begun = time.monotonic()
    answers = await asyncio.gather(
        door.redeem(new.code, "n" * 32),
        door.register(agent.token),
        door.heartbeat(agent.token),
        door.complete(agent.token),
        door.http.get(f"{door.url}/readyz"),
    )
    took = time.monotonic() - begun
    faulty.postgres.heal()

    assert [refusal(a) for a in answers] == [(503, "unavailable")] * 4 + [(503, "not_ready")]
    assert all(int(a.headers["Retry-After"]) > 0 for a in answers)
    assert "Postgres" in answers[-1].json()["message"]
    assert took < PATIENCE_S + 3
    assert (await door.http.get(f"{door.url}/healthz")).status_code == 200

    async def ready() -> bool:
        return (await door.http.get(f"{door.url}/readyz")).status_code == 200

    async def redeems() -> bool:
        return (await door.redeem(new.code, "n" * 32)).status_code == 200

    async def completes() -> bool:
        # 401: it was taken by a call whose answer came later than this gateway waits, and the agent has gone since.
        return (await door.complete(agent.token)).status_code in (200, 401)

    for works in (ready, redeems, completes):
        await until(works)
    assert (await lab.outcome(agent.started)).result == "succeeded"


@pytest.mark.parametrize("fault", ["cut", "hang"])
async def test_without_temporal_registering_is_503_and_heartbeats_go_on(lab: Lab, faulty: Faulty, fault: str) -> None:
    door = faulty.door
    agent = await _known_to(door, await registered(lab, faulty.patient))
    new = await redeemed(lab, faulty.patient)

    getattr(faulty.temporal, fault)()
    refused = [await door.register(new.token), await door.http.get(f"{door.url}/readyz")]
    beat = await door.heartbeat(agent.token)
    faulty.temporal.heal()

    assert [refusal(a) for a in refused] == [(503, "unavailable"), (503, "not_ready")]
    assert all(int(a.headers["Retry-After"]) > 0 for a in refused)
    assert beat.status_code == 200

    async def registers() -> bool:
        return (await door.register(new.token)).status_code == 200

    await until(registers)


async def test_a_completion_is_safe_before_temporal_hears_of_it_and_a_repeat_tells_it(lab: Lab, faulty: Faulty) -> None:
    door = faulty.door
    agent = await _known_to(door, await registered(lab, faulty.patient))

    faulty.temporal.cut()
    first = await door.complete(agent.token, "failed", exit_code=4)
    recorded = await lab.outcomes.completion(agent.id)
    faulty.temporal.heal()

    assert refusal(first) == (503, "unavailable")
    assert recorded == ("failed", 4)

    async def accepted() -> bool:
        return (await door.complete(agent.token, "failed", exit_code=4)).status_code == 200

    await until(accepted)
    assert (await lab.outcome(agent.started)).result == "failed"
