"""Reclaim: compute of ours that nobody answers for. Runs on the queue of the host where the compute is.

A pass only looks: what has no row and no open workflow is sighted. What two passes in a row have sighted is destroyed,
after both have been asked once more. So neither a listing that lies, nor one that is slow, nor a row that is a moment
late ends anything: compute with a row is never touched, and what a backend lists bears our installation's id.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Container, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.errors import store_errors
from activities.heartbeats import heartbeats
from activities.models import Looked, LookInput, Reclaimed, ReclaimInput, RetireAnswer
from activities.restoring import Restoring
from hatchway.backends.base import Backend, OwnedCompute
from hatchway.backends.errors import without_any_claims
from hatchway.errors import DestroyError, ErrorType, HatchwayError
from hatchway.liveness import AGENT_ID, open_workflow_of, workflow_is_gone
from hatchway.metrics import Metrics
from hatchway.model import ReclaimRequest, ScaleDownReason, Sighting, TeardownFacts
from hatchway.polling import is_polled
from hatchway.schedules import delete_reclaim_schedule
from hatchway.store.reclaiming import Reclaiming
from hatchway.task_queues import host_queue
from hatchway.tie import NamespaceTie, Tie

PAGE = 500
"""How many agents the database is asked about at once."""

LOOKED_AT_A_PASS = 200
"""Agents without a row whose workflow is looked for: each costs two or three calls to Temporal. The rest has time."""

UNADOPTED_FOR = timedelta(minutes=1)
"""Most agents register within seconds; for one that takes longer, a pass reads its workflow's history."""

Listed = dict[str, OwnedCompute]
Rowless = list[tuple[str, OwnedCompute]]
"""With the kind of backend that has it."""


@dataclass
class _Found:
    """What a look has come upon so far; see `Looked`."""

    seen: int = 0
    rowless: Rowless = field(default_factory=list)
    unadopted: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Agent id to its workflow and that one's first run."""
    listed: list[str] = field(default_factory=list)
    sighted: list[Sighting] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


class ReclaimActivities:
    """One for each host, with every backend that this worker reaches there."""

    def __init__(
        self,
        host_id: str,
        backends: Mapping[str, Backend],
        installation_id: str,
        store: Reclaiming,
        tie: NamespaceTie,
        temporal: Client,
        restoring: Restoring,
        metrics: Metrics,
    ) -> None:
        self._host_id = host_id
        self._backends = backends
        self._installation_id = installation_id
        self._store = store
        self._tie = tie
        self._temporal = temporal
        self._restoring = restoring
        self._metrics = metrics

    @property
    def all(self) -> list[Callable[..., Any]]:
        """For a worker's list."""
        return [self.look, self.destroy]

    @activity.defn(name="reclaim_look")
    async def look(self, ask: LookInput) -> Looked:
        """List what bears our id, and sight what has neither row nor open workflow. Destroys nothing.

        What has an open workflow gets its row back. A backend that does not answer is told in `failed`, and holds up
        no other one.
        """
        async with heartbeats() as progress:
            await self._stand_down_elsewhere()
            found = _Found()
            for kind, backend in self._backends.items():
                progress(f"listing {kind}")
                await self._list(kind, backend, found)
            before = {(known.backend, known.agent_id): known for known in ask.before}
            for number, (kind, owned) in enumerate(chosen(found.rowless, before)):
                progress(f"asking for workflows, {number} of {len(found.rowless)}")
                if not await self._answered_for(owned, found):
                    known = before.get((kind, owned.agent_id))
                    found.sighted.append(known or Sighting(agent_id=owned.agent_id, backend=kind, since=ask.now))
            for agent_id, (workflow_id, first_run_id) in some_of(found.unadopted):
                progress(f"asking for adoptions, {len(found.unadopted)} in all")
                await self._remembered(agent_id, workflow_id, first_run_id, found)
        return Looked(
            seen=found.seen,
            listed=found.listed,
            sighted=found.sighted,
            more=max(0, len(found.rowless) - LOOKED_AT_A_PASS),
            restored=found.restored,
            failed=found.failed,
        )

    async def _list(self, kind: str, backend: Backend, found: _Found) -> None:
        """Everything that this backend has of ours; or, if its list breaks off, nothing: half of it says little."""
        seen, rowless = 0, []
        unadopted: dict[str, tuple[str, str]] = {}
        try:
            async for page in _pages(backend.owned()):
                seen += len(page)
                with store_errors(self._metrics):
                    rowless += [(kind, page[agent_id]) for agent_id in await self._store.rowless(list(page))]
                    unadopted |= await self._store.unadopted(list(page), UNADOPTED_FOR)
        except ApplicationError:
            raise
        except Exception as e:  # a backend's SDK has errors of its own, and none may hide the other backends
            activity.logger.warning("the computes of %s on host %s cannot be listed: %s", kind, self._host_id, e)
            found.failed[kind] = f"its computes cannot be listed: {e or type(e).__name__}"
            return
        found.seen += seen
        found.rowless += rowless
        found.unadopted |= unadopted
        found.listed.append(kind)

    async def _answered_for(self, owned: OwnedCompute, into: _Found) -> bool:
        """Whether a workflow answers for it, whose row is then written again."""
        found = await open_workflow_of(self._temporal, owned.agent_id)
        if found is None:
            return False
        if found.is_provision:
            try:
                with store_errors(self._metrics):
                    if await self._restoring.restore(owned.agent_id, found, owned.ref):
                        activity.logger.warning("the lost row of %s was written again", owned.agent_id)
                        into.restored.append(owned.agent_id)
            except ApplicationError:
                raise
            except Exception as e:  # whatever is wrong with this one, the others are looked at
                into.failed[owned.agent_id] = f"its row is lost and cannot be written again: {e}"
        return True

    async def _remembered(self, agent_id: str, workflow_id: str, first_run_id: str, into: _Found) -> None:
        """A row of a restored backup learns of an adoption that only the workflow knows of."""
        try:
            if await workflow_is_gone(self._temporal, workflow_id, first_run_id):
                return
            with store_errors(self._metrics):
                if await self._restoring.restore_adoption(agent_id, workflow_id):
                    activity.logger.warning("the lost registration of %s was written again", agent_id)
                    into.restored.append(agent_id)
        except ApplicationError:
            raise
        except Exception as e:  # whatever is wrong with this one, the others are looked at
            into.failed[agent_id] = f"its registration cannot be looked for: {e}"

    @activity.defn(name="reclaim_destroy")
    async def destroy(self, ask: ReclaimInput) -> Reclaimed:
        """Destroy one agent's compute by its id, unless somebody answers for it by now. Confirmed gone when it returns.

        Raises ApplicationError, to be tried again, while that cannot be confirmed.
        """
        async with heartbeats():
            await self._stand_down_elsewhere()
            backend = self._backends.get(ask.backend)
            if backend is None:
                raise ApplicationError(
                    f"this worker of host {self._host_id} has no {ask.backend} backend", type="WrongWorker"
                )
            if await open_workflow_of(self._temporal, ask.agent_id):
                return Reclaimed(spared="a workflow answers for it")
            with store_errors(self._metrics):
                if not await self._store.rowless([ask.agent_id]):
                    return Reclaimed(spared="it has a row")
            activity.logger.warning("reclaiming %s: no row and no workflow on two passes", ask.agent_id)
            facts = TeardownFacts(backend_type=ask.backend, host_id=self._host_id)
            try:
                await backend.destroy(ask.agent_id, facts, ScaleDownReason.SHUTDOWN)
                left = await backend.find(ask.agent_id)
            except HatchwayError as e:
                raise ApplicationError(without_any_claims(str(e)), type=type(e).__name__) from None
            if left is not None:
                raise ApplicationError(
                    f"{ask.agent_id} is there again after it was destroyed: {left.ref}", type=DestroyError.__name__
                )
        return Reclaimed()

    async def _stand_down_elsewhere(self) -> None:
        with store_errors(self._metrics):
            tie = await self._tie.look(self._installation_id)
        if tie is not Tie.HERE:
            raise ApplicationError(self._tie.words(tie), type=ErrorType.OTHER_NAMESPACE, non_retryable=True)


def chosen(rowless: Rowless, before: Container[tuple[str, str]]) -> Rowless:
    """What this pass looks at: what was sighted before, whose turn it is, and as much that is new; by chance, or those
    that cannot be destroyed, or whose row cannot be written again, would keep the others out for ever.
    """
    known = [one for one in rowless if (one[0], one[1].agent_id) in before]
    new = [one for one in rowless if (one[0], one[1].agent_id) not in before]
    random.shuffle(known)
    random.shuffle(new)
    half = LOOKED_AT_A_PASS // 2
    return [*known[:half], *new, *known[half:]][:LOOKED_AT_A_PASS]


def some_of(unadopted: Mapping[str, tuple[str, str]]) -> list[tuple[str, tuple[str, str]]]:
    """As many as a pass looks at, by chance: those that start slowly would keep the others out for ever."""
    return random.sample(sorted(unadopted.items()), min(len(unadopted), LOOKED_AT_A_PASS))


class ReclaimRetirement:
    """What any worker can do about a host that none polls."""

    def __init__(self, store: Reclaiming, temporal: Client, metrics: Metrics) -> None:
        self._store = store
        self._temporal = temporal
        self._metrics = metrics

    @activity.defn(name="reclaim_retire")
    async def retire(self, ask: ReclaimRequest) -> RetireAnswer:
        """Delete the schedule of a host that nobody polls and that no row names. A worker that comes makes it anew.

        One that rows name stays, and its passes fail: somebody has to look after that host.
        """
        with store_errors(self._metrics):
            if await self._store.agents_on(ask.host_id):
                return RetireAnswer(retired=False)
        if await is_polled(self._temporal, host_queue(ask.host_id)):
            return RetireAnswer(retired=False)
        await delete_reclaim_schedule(self._temporal, ask.host_id)
        return RetireAnswer(retired=True)


async def _pages(owned: AsyncIterator[OwnedCompute]) -> AsyncIterator[Listed]:
    """By agent id: two computes of one agent are destroyed by one call. What is no agent's id cannot be asked after."""
    page: Listed = {}
    async for compute in owned:
        if not AGENT_ID.fullmatch(compute.agent_id):
            activity.logger.warning("%s bears no agent id that could be: left alone", compute.ref.ref)
            continue
        page[compute.agent_id] = compute
        if len(page) == PAGE:
            yield page
            page = {}
    if page:
        yield page
