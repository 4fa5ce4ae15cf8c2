"""One provision, told to people while it happens, and held against what the servers say afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from hatchway.backends.base import Backend
from hatchway.client import HatchwayClient, ProvisionFailed, Started
from hatchway.dev.follow import follow
from hatchway.dev.stack import NAMESPACE, Stack
from hatchway.errors import HatchwayError
from hatchway.links import page_url
from hatchway.model import EndReason, JobResult, ProvisionOutcome, ProvisionRequest
from hatchway.store.outcomes import Outcomes
from hatchway.store.pool import Database
from hatchway.store.slots import Slots

LIMIT_S = 120.0
"""For one provision. It takes about 4 s; one whose image has to be pulled takes longer."""
LEAVE_S = 20.0
"""For the teardown of a provision that was broken off: the agent's stop grace is not used up by a shell that sleeps."""
OUTPUT_EVERY_S = 0.1

Say = Callable[[str], None]


@dataclass(frozen=True)
class Shown:
    """A provision that is over: it has an outcome, or a failure."""

    started: Started
    ui_url: str
    outcome: ProvisionOutcome | None
    failure: ProvisionFailed | None

    @property
    def stages_s(self) -> dict[str, float]:
        return self.outcome.stages.model_dump(mode="json") if self.outcome else {}

    async def check(self, client: HatchwayClient, db: Database, say: Say) -> bool:
        """Whether Temporal, the outcome row and the slot agree that the job was served. Says what does not."""
        handle = client.temporal.get_workflow_handle(self.started.workflow_id, run_id=self.started.run_id)
        status = (await handle.describe()).status
        row = await Outcomes(db).get(self.started.agent_id)
        claims = {
            "the provision succeeded": self.outcome is not None and self.outcome.result is JobResult.SUCCEEDED,
            "its workflow is COMPLETED": status is WorkflowExecutionStatus.COMPLETED,
            "its outcome row says completed": row is not None and row.end_reason == EndReason.COMPLETED,
            "its job's result is recorded": row is not None and row.result == JobResult.SUCCEEDED,
            "its slot is free": await Slots(db).get(self.started.agent_id) is None,
        }
        for claim, true in claims.items():
            if not true:
                say(f"not true: {claim}")
        return all(claims.values())


class Showing:
    """Runs provisions on a stack and tells them."""

    def __init__(self, stack: Stack, client: HatchwayClient, db: Database, backend: Backend, say: Say) -> None:
        """`backend` is asked for the agent's output."""
        self._stack = stack
        self._client = client
        self._db = db
        self._backend = backend
        self._say = say

    async def run(self, request: ProvisionRequest) -> Shown:
        """Provision, tell each moment and what the agent prints, and wait for the end. Raises HatchwayError."""
        started = await self._client.provision(request)
        url = page_url(self._stack.temporal.ui_url or "", NAMESPACE, started.workflow_id, started.run_id)
        handle = self._client.temporal.get_workflow_handle(started.workflow_id, run_id=started.run_id)
        began = (await handle.describe()).start_time
        self._say(f"job {request.job_id} is offered; its agent will be {started.agent_id}")
        self._say(f"watch it at {url}")
        try:
            async with asyncio.timeout(LIMIT_S), self._output(started.agent_id):
                await self._tell(started, began)
        except TimeoutError:
            await self._break_off(started)
            raise HatchwayError(f"the provision was not over within {LIMIT_S:g} s: {self._last_words()}") from None
        except BaseException:
            await self._break_off(started)
            raise
        return await self._ended(started, url)

    async def _tell(self, started: Started, began: datetime) -> None:
        async for moment in follow(self._db, self._client, started):
            self._stack.check()
            seconds = (moment.at - began).total_seconds()
            self._say(f"{seconds:7.2f} s  {moment.what:<23} {moment.detail}".rstrip())

    async def _ended(self, started: Started, url: str) -> Shown:
        try:
            return Shown(started, url, await self._client.outcome(started), None)
        except ProvisionFailed as e:
            return Shown(started, url, None, e)

    @asynccontextmanager
    async def _output(self, agent_id: str) -> AsyncIterator[None]:
        reading = asyncio.create_task(self._read_output(agent_id))
        try:
            yield
        finally:
            reading.cancel()

    async def _read_output(self, agent_id: str) -> None:
        told = 0
        while True:
            await asyncio.sleep(OUTPUT_EVERY_S)
            try:
                lines = (await self._backend.logs(agent_id)).splitlines()
            except HatchwayError:  # no compute yet, or none any more
                continue
            for line in lines[told:]:
                self._say(f"           │ {line}")
            told = max(told, len(lines))

    async def _break_off(self, started: Started) -> None:
        """Have the agent torn down before the stack goes: a process of its must not outlive it."""
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._client.cancel(started.workflow_id, "the demo was broken off")
                while await Slots(self._db).get(started.agent_id) is not None:  # noqa: ASYNC110 - a row, in a database
                    await asyncio.sleep(0.1)
        except (TimeoutError, RPCError, HatchwayError) as e:
            self._say(f"agent {started.agent_id} may still run ({type(e).__name__}): {self._stack.state_dir} has it")

    def _last_words(self) -> str:
        return f"its worker's log is {self._stack.logs_dir / 'worker.log'}"
