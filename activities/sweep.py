"""The steps of a sweep: what no single provision can see to, once a minute, each step by itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.errors import store_errors
from hatchway.liveness import workflow_is_gone
from hatchway.metrics import Metrics
from hatchway.model import GrantedRequest, SweepRequest, SweptStep
from hatchway.store.rows import Wake
from hatchway.store.slots import Slots
from hatchway.store.waiters import Line
from hatchway.waking import RPC_LIMIT

GRANT_PATIENCE = timedelta(seconds=30)
"""A grant is taken up within a second of its signal. One this old is looked into: is its workflow there at all?"""

OVERDUE_AFTER = timedelta(minutes=2)
"""A waiter that lives has left the line at its deadline; its last reserve may wait that long for the database."""

HEAD_PATIENCE = timedelta(seconds=30)
"""Who has just come was alive a moment ago. The head of each line that lives costs one call of Temporal a minute."""

BATCH = 100
REPLANNED_A_PASS = 500
"""Far back in a line of 10,000, a plan holds the admission lock for some 40 ms: so many leave it free for two thirds of
the minute. The head of the line comes first, and who stands behind it has time."""


class SweepActivities:
    def __init__(self, line: Line, slots: Slots, temporal: Client, metrics: Metrics) -> None:
        self._line = line
        self._slots = slots
        self._temporal = temporal
        self._metrics = metrics

    @activity.defn(name="sweep_line")
    async def line(self, ask: SweepRequest) -> SweptStep:
        """Hand over room that has opened by time, and see to grants and waiters whose workflow does not.

        `handed_over`: grants that were signalled. `given_back`: grants of workflows that are gone. `replanned`: waiters
        told to plan anew, after an apply. `left`: waiters taken out of the line, as their workflow is gone.
        """
        done = {"handed_over": 0, "given_back": 0, "replanned": 0, "left": 0}
        with store_errors(self._metrics):
            while grants := await self._line.pump():
                await self._hand_over(grants, done)
            await self._look_into(await self._line.grants(GRANT_PATIENCE), done)
            while done["replanned"] < REPLANNED_A_PASS and (waiters := await self._line.outdated(BATCH)):
                await self._replan(waiters, done)
            for waiter in await self._line.overdue(OVERDUE_AFTER, BATCH):
                if await self._gone(waiter):
                    await self._leave(waiter, done)
            await self._look_into_heads(done)
        return SweptStep(done=done)

    async def _look_into_heads(self, done: dict[str, int]) -> None:
        """Nobody overtakes the head of a line: one whose workflow was terminated would hold up everybody behind it.

        Behind a dead one may stand the next. Where hundreds were terminated at once, a few passes see to them.
        """
        known: set[str] = set()
        while len(known) < BATCH:
            fresh = [head for head in await self._line.heads(HEAD_PATIENCE) if head.agent_id not in known]
            if not fresh:
                return
            for head in fresh:
                known.add(head.agent_id)
                if await self._gone(head):
                    await self._leave(head, done)

    async def _hand_over(self, grants: Iterable[Wake], done: dict[str, int]) -> None:
        pending = list(grants)
        while pending:
            grant = pending.pop(0)
            if await self._signal(grant):
                done["handed_over"] += 1
            else:
                pending += await self._give_back(grant, done)

    async def _look_into(self, grants: Iterable[Wake], done: dict[str, int]) -> None:
        """A signal reaches whoever has the workflow id now: another start of it takes up no grant but its own."""
        for grant in grants:
            if await self._gone(grant):
                await self._hand_over(await self._give_back(grant, done), done)

    async def _replan(self, waiters: Iterable[Wake], done: dict[str, int]) -> None:
        for waiter in waiters:
            if await self._signal(waiter):
                done["replanned"] += 1
            else:
                await self._leave(waiter, done)

    async def _give_back(self, grant: Wake, done: dict[str, int]) -> list[Wake]:
        returned = await self._slots.returned(grant.agent_id)
        done["given_back"] += returned.existed
        return returned.wake

    async def _leave(self, waiter: Wake, done: dict[str, int]) -> None:
        """Its place goes to those behind it, or the grant that it has got meanwhile; not a slot that it has taken up,
        whose compute may still run.
        """
        returned = await self._slots.returned(waiter.agent_id)
        done["left"] += 1
        await self._hand_over(returned.wake, done)

    async def _signal(self, wake: Wake) -> bool:
        """False: no workflow of that id is open."""
        activity.heartbeat()
        try:
            await self._temporal.get_workflow_handle(wake.workflow_id).signal(
                "granted", GrantedRequest(agent_id=wake.agent_id), rpc_timeout=RPC_LIMIT
            )
        except RPCError as e:
            if e.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        self._metrics.redispatched("sweep")
        return True

    async def _gone(self, wake: Wake) -> bool:
        activity.heartbeat()
        return await workflow_is_gone(self._temporal, wake.workflow_id, wake.first_run_id)
