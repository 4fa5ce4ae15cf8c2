"""One signal in ten gets lost: whatever it was, two sweeps heal it, and it does no harm when it comes late."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from temporalio.client import Client, Interceptor, OutboundInterceptor, SignalWorkflowInput
from temporalio.service import RPCError, RPCStatusCode

from hatchway.client import Started
from hatchway.model import EndReason, ProvisionState
from hatchway.store.pool import Database
from tests.integration.reap.facts import gateway, quick
from tests.support.lab import Lab, control_worker
from tests.support.namespaces import Namespaces, until
from tests.support.scripted import Cloud, ScriptedBackend

S = ProvisionState
AGENTS, SLOTS = 60, 20


@dataclass
class Losing(Interceptor):
    """Takes every tenth signal of its kind, without a word to whoever sent it; the same one never twice."""

    sent: Counter[str] = field(default_factory=Counter)
    lost: list[SignalWorkflowInput] = field(default_factory=list)
    loses: bool = True

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Outbound(next, self)


class _Outbound(OutboundInterceptor):
    def __init__(self, following: OutboundInterceptor, losing: Losing) -> None:
        super().__init__(following)
        self._losing = losing

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        lost_before = any((one.id, one.signal) == (input.id, input.signal) for one in self._losing.lost)
        self._losing.sent[input.signal] += 1
        if self._losing.loses and not lost_before and self._losing.sent[input.signal] % 10 == 0:
            self._losing.lost.append(input)
        else:
            await super().signal_workflow(input)


@pytest.fixture
def losing() -> Losing:
    return Losing()


@pytest.fixture
async def lossy(namespaces: Namespaces, database_url: str, losing: Losing) -> AsyncIterator[Lab]:
    """A lab in which every process loses signals, the gateways too."""
    config: Any = (await namespaces.take()).config()
    temporal = Client(**{**config, "interceptors": [losing]})
    async with Database.open(database_url) as db:
        lab = await Lab.on(temporal, db, ScriptedBackend(Cloud()))
        await lab.apply(quick(maxAgents=SLOTS, maxConcurrentSpawns=SLOTS))
        await gateway(db)
        async with control_worker(lab):
            lab.start_host(lab.backend)
            yield lab
            await lab.stop_host(lab.backend.host_id)


@pytest.mark.scenario("S34")
async def test_what_a_lost_signal_left_waiting_is_healed_within_two_sweeps(lossy: Lab, losing: Losing) -> None:
    started = [await lossy.provision(job_id=f"job-{n}") for n in range(AGENTS)]
    served: list[Started] = []

    while len(served) < AGENTS:
        ready = await _until_adopted(lossy, [one for one in started if one not in served])
        for one in ready:
            await lossy.complete(one)
        await _two_sweeps(lossy)
        ended = await asyncio.gather(*(lossy.outcome(one) for one in ready))
        assert {end.end_reason for end in ended} == {EndReason.COMPLETED}
        served += ready
        await _two_sweeps(lossy)  # their releases have handed slots over

    losing.loses = False
    assert len(losing.lost) > 5
    assert {signal.signal for signal in losing.lost} >= {"granted", "release"}
    late = [await _arrives(lossy, signal) for signal in losing.lost]
    assert set(late) == {"nobody there"}
    assert (await lossy.sweep()).steps["reap"].done["condemned"] == 0
    assert [lossy.cloud.created(one.agent_id) for one in started] == [1] * AGENTS
    assert lossy.cloud.most <= SLOTS
    await lossy.nothing_left()


async def _until_adopted(lab: Lab, waiting: list[Started]) -> list[Started]:
    """Everybody who holds a slot by now, at work: as many as there is room for."""

    async def holders() -> list[Started] | None:
        rows = {row.agent_id for row in await lab.slots.list() if row.state.value == "spawned"}
        ready = [one for one in waiting if one.agent_id in rows]
        return ready if len(ready) == min(SLOTS, len(waiting)) else None

    ready: list[Started] = await until(holders, what="all slots taken up")
    await asyncio.gather(*(lab.reaches(one, S.AWAITING_ADOPTION) for one in ready))
    await asyncio.gather(*(lab.adopt(one) for one in ready))
    return ready


async def _two_sweeps(lab: Lab) -> None:
    """A minute lies between them: grants that were told of count as forgotten by then."""
    for _ in range(2):
        await lab.sweep()
        await lab.db.fetch_all("update scaler_spawning_agents set notified_at = now() - interval '1 min'")


async def _arrives(lab: Lab, signal: SignalWorkflowInput) -> str:
    try:
        await lab.temporal.get_workflow_handle(signal.id).signal(signal.signal, signal.args[0])
    except RPCError as e:
        return "nobody there" if e.status is RPCStatusCode.NOT_FOUND else e.message
    return "heard"
