"""What the store's tests ask for: reservations, caps, and agents that got as far as a test needs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

import psycopg

from hatchway.store.adoption import Adopted, Adoption
from hatchway.store.claims import Claims
from hatchway.store.config_versions import Capacity, ConfigVersions
from hatchway.store.pool import Database
from hatchway.store.slots import Candidate, Held, Reservation, Slots, SpawnRow

SCALER = "s1"
HOUR = timedelta(hours=1)
TABLES = (
    "hatchway_installation",
    "scaler_agent_jobs",
    "scaler_agent_presence",
    "scaler_agent_tokens",
    "scaler_capacity",
    "scaler_config_versions",
    "scaler_failures",
    "scaler_instances",
    "scaler_pending_claims",
    "scaler_provision_outcomes",
    "scaler_reservations",
    "scaler_spawning_agents",
    "scaler_waiters",
)


def candidate(scaler: str = SCALER, mcpu: int = 0, mem_bytes: int = 0) -> Candidate:
    return Candidate(
        scaler=scaler,
        mcpu=mcpu,
        mem_bytes=mem_bytes,
        label_set=["linux", scaler],
        mandatory_labels=["gpu"],
        backend_type="container",
        provisioning_targets=[],
        roles=["builder"],
    )


def reservation(
    agent_id: str,
    *,
    candidates: Sequence[Candidate] = (candidate(),),
    job_id: str | None = None,
    wait: bool = True,
    priority: int = 3,
    config_version: int = 1,
    reserved_for: timedelta = timedelta(minutes=5),
) -> Reservation:
    return Reservation(
        agent_id=agent_id,
        workflow_id=f"provision/{agent_id}",
        workflow_first_run_id=f"run-{agent_id}",
        job_id=job_id,
        run_id=None if job_id is None else f"run-of-{job_id}",
        priority=priority,
        wait=wait,
        candidates=list(candidates),
        config_version=config_version,
        owner_instance_id="worker-1",
        reserved_for=reserved_for,
        wait_timeout=HOUR,
    )


async def set_caps(db: Database, caps: Mapping[str, int | None], everything: int | None = None) -> None:
    """Apply a config of these scalers and their caps."""
    await ConfigVersions(db).apply(
        {"caps": dict(caps), "everything": everything},
        source="test",
        by="test",
        note=None,
        expected_version=None,
        capacities=[Capacity.everything(everything), *(Capacity.of_scaler(n, c) for n, c in caps.items())],
    )


async def held(db: Database, agent_id: str, job_id: str | None = None, scaler: str = SCALER) -> SpawnRow:
    """An agent that holds a slot."""
    answer = await Slots(db).reserve(reservation(agent_id, job_id=job_id, candidates=[candidate(scaler)]))
    assert isinstance(answer, Held), answer
    return answer.row


async def minted(
    db: Database,
    agent_id: str,
    claim_hash: str,
    ttl: timedelta = timedelta(minutes=5),
    token_ttl: timedelta = timedelta(minutes=10),
) -> bool:
    return await Claims(db).mint(
        agent_id,
        SCALER,
        ["linux"],
        claim_hash=claim_hash,
        claim_prefix="hw_claim_abc",
        ttl=ttl,
        agent_token_ttl=token_ttl,
        orchestrator_url="http://127.0.0.1:8780",
    )


async def adopted(db: Database, agent_id: str, job_id: str | None = None, registration_id: str = "reg-1") -> SpawnRow:
    """An agent that holds a slot and has registered at `gateway-1`."""
    await held(db, agent_id, job_id)
    answer = await Adoption(db).adopt(agent_id, "gateway-1", registration_id)
    assert isinstance(answer, Adopted), answer
    return answer.row


async def counters_are_right(db: Database) -> bool:
    """Every scope's use equals what its reservations add up to."""
    wrong = await db.fetch_all(
        """
        select c.scope
          from scaler_capacity c
          left join scaler_reservations r
            on c.scope in ('global', 'pool:' || r.machine_pool, 'scaler:' || r.scaler_name)
         group by c.scope
        having (c.agents, c.mcpu, c.mem_bytes)
               is distinct from (count(r.agent_id), coalesce(sum(r.mcpu), 0), coalesce(sum(r.mem_bytes), 0))
        """
    )
    return wrong == []


async def until(condition: Callable[[], Awaitable[bool]], timeout: float = 60) -> None:
    """Return when `condition` holds; asked every 5 ms."""
    end = time.monotonic() + timeout
    while not await condition():
        assert time.monotonic() < end, "the awaited condition did not come true"
        await asyncio.sleep(0.005)


class RowBarrier:
    """Holds spawn rows locked until as many sessions as a test launched wait for them; then all race at once."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def race(self, agent_ids: Sequence[str], launch: Callable[[], Sequence[Awaitable[object]]]) -> list[object]:
        """Start what `launch` makes, in its order, while the rows are locked; let go; return the answers."""
        async with await psycopg.AsyncConnection.connect(self._dsn) as blocker:
            await blocker.execute(
                "select from scaler_spawning_agents where agent_id = any (%s) order by agent_id for update",
                (list(agent_ids),),
            )
            racers = [asyncio.ensure_future(one) for one in launch()]
            async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as watcher:

                async def all_wait() -> bool:
                    cursor = await watcher.execute(
                        """
                        select count(*)
                          from pg_stat_activity
                         where datname = current_database() and wait_event_type = 'Lock'
                        """
                    )
                    row = await cursor.fetchone()
                    return row is not None and row[0] >= len(racers)

                await until(all_wait)
            await blocker.commit()
        return list(await asyncio.gather(*racers))
