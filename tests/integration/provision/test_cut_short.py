"""A spawn that is cut short after its effect: what the row says decides whether that stands."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Worker

from activities import unwanted
from activities.models import SpawnInput
from hatchway.client import Started
from hatchway.errors import DestroyError, ErrorType, StoreUnreachable
from hatchway.handing_back import HandingBack
from hatchway.model import EndReason, ProvisionRequest, ProvisionState
from hatchway.task_queues import spawn_queue
from tests.support.lab import SCALER, Lab
from tests.support.namespaces import until
from tests.support.scripted import Gate, straight_on
from tests.support.stack import laptop
from tests.support.states import AT

S = ProvisionState

CALLED_OFF = ActivityCancellationDetails(cancel_requested=True)
CUTS: dict[str, ActivityCancellationDetails | None] = {
    "handed back": None,
    "the worker leaves": ActivityCancellationDetails(worker_shutdown=True),
    "given up": ActivityCancellationDetails(not_found=True),
    "too slow": ActivityCancellationDetails(timed_out=True),
    "called off": CALLED_OFF,
}


async def _wanted(lab: Lab, started: Started) -> None:
    """Nothing happens to the row."""


async def _closing(lab: Lab, started: Started) -> None:
    await lab.adoption.close(started.agent_id, "cancelled", only_unadopted=False)


async def _gone(lab: Lab, started: Started) -> None:
    await lab.slots.release(started.agent_id, "cancelled")


ROWS: dict[str, Callable[[Lab, Started], Awaitable[None]]] = {"wanted": _wanted, "closing": _closing, "gone": _gone}


class Attempt:
    """One attempt of a spawn, with a worker of its own that the test cuts short."""

    def __init__(self, lab: Lab, started: Started) -> None:
        self._env = ActivityEnvironment()
        request = ProvisionRequest(labels=["linux"], job_id="job-1")
        limit = timedelta(seconds=60)
        ask = SpawnInput(agent_id=started.agent_id, request=request, spawn_timeout=limit, adoption_timeout=limit)
        self.task: asyncio.Future[Any] = asyncio.ensure_future(self._env.run(lab.compute(lab.backend).spawn, ask))

    def cut(self, why: ActivityCancellationDetails | None) -> None:
        if why is None:
            self.task.cancel()
        else:
            self._env.cancel(why)

    async def ended(self) -> None:
        await asyncio.wait_for(asyncio.wait([self.task]), 30)


@pytest.fixture
async def held(lab: Lab) -> Started:
    await lab.stop_host(lab.backend.host_id)
    return await _a_slot(lab)


async def _a_slot(lab: Lab) -> Started:
    """One whose spawn nobody has taken yet."""
    started = await lab.provision(job_id=f"job-{uuid.uuid4().hex}")

    async def there() -> bool:
        return await lab.slots.get(started.agent_id) is not None

    await until(there, what="a slot")
    return started


def _asked_to_destroy(lab: Lab) -> int:
    return sum(what == "asked to destroy" for what, _, _ in lab.cloud.log)


async def _end(lab: Lab, started: Started) -> None:
    """The provision, and with it whatever still stands."""
    lab.start_host(lab.backend)
    await lab.hatchway.cancel(started.workflow_id)
    await lab.nothing_left()


@pytest.mark.scenario("S18")
@pytest.mark.parametrize("row", ROWS)
async def test_only_what_nobody_wants_and_nobody_else_ends_is_destroyed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, row: str
) -> None:
    await lab.stop_host(lab.backend.host_id)
    confirm = lab.slots.confirm_spawned
    for why, cut in CUTS.items():
        for at in ("in the backend", "at its confirmation"):
            gate = Gate()
            lab.backend.after_create = gate if at == "in the backend" else straight_on
            monkeypatch.setattr(lab.slots, "confirm_spawned", confirm if at == "in the backend" else _held_at(gate))
            held = await _a_slot(lab)
            attempt = Attempt(lab, held)
            await gate.reached.wait()
            await ROWS[row](lab, held)

            attempt.cut(cut)
            await attempt.ended()

            stands = row == "wanted" or (row == "closing" and cut is CALLED_OFF)
            destroyed = ("asked to destroy", held.agent_id, lab.backend.host_id) in lab.cloud.log
            assert attempt.task.cancelled(), (why, at)
            assert (held.agent_id in lab.cloud.live, destroyed) == (stands, not stands), (why, at)
            await lab.temporal.get_workflow_handle(held.workflow_id).terminate()
            await lab.slots.release(held.agent_id, "cancelled")
            lab.cloud.live.clear()


def _held_at(gate: Gate) -> Callable[..., Awaitable[None]]:
    async def confirm(agent_id: str, *_: Any) -> None:
        await gate(agent_id)

    return confirm


@pytest.mark.parametrize("how", ["it refuses", "it hangs"])
async def test_what_the_database_does_not_answer_for_stands(
    lab: Lab, held: Started, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    lab.backend.after_create = gate = Gate()
    attempt = Attempt(lab, held)
    await gate.reached.wait()
    await _closing(lab, held)

    async def away(_agent_id: str) -> None:
        if how == "it refuses":
            raise StoreUnreachable("by test")
        await asyncio.Event().wait()

    monkeypatch.setattr(unwanted, "ASK_S", 0.2)
    monkeypatch.setattr(lab.slots, "get", away)
    attempt.cut(None)
    await attempt.ended()

    assert attempt.task.cancelled()
    assert held.agent_id in lab.cloud.live
    assert _asked_to_destroy(lab) == 0
    monkeypatch.undo()
    gate.open()
    await _end(lab, held)


@pytest.mark.parametrize("cut_again", [False, True])
async def test_a_destruction_that_nobody_else_would_do_is_brought_to_its_end(
    lab: Lab, held: Started, monkeypatch: pytest.MonkeyPatch, cut_again: bool
) -> None:
    """It fails at first, and its worker is told once more to let go of it."""
    monkeypatch.setattr(unwanted, "PAUSE_S", 0.05)
    lab.backend.after_create = created = Gate()
    destroying, tries = Gate(), 0

    async def fails_at_first(agent_id: str) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            await destroying(agent_id)
            raise DestroyError("the engine answered 500")

    lab.backend.before_destroy = fails_at_first
    attempt = Attempt(lab, held)
    await created.reached.wait()
    await _gone(lab, held)

    attempt.cut(CUTS["given up"])
    await destroying.reached.wait()
    if cut_again:
        attempt.cut(None)
    destroying.open()
    await attempt.ended()

    assert attempt.task.cancelled()
    assert held.agent_id not in lab.cloud.live
    assert tries == 2


@pytest.mark.parametrize("found", ["by the cut", "at its confirmation"])
@pytest.mark.parametrize(("grace_s", "stands"), [(30, False), (0, True)])
async def test_an_unwanted_agent_has_its_scalers_stop_grace_on_top_of_what_its_backend_needs(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, found: str, grace_s: int, stands: bool
) -> None:
    """It takes longer to stop than all the time that the backend has without a grace."""
    await lab.stop_host(lab.backend.host_id)
    await lab.apply(laptop(stopGraceSeconds=grace_s))
    monkeypatch.setattr(unwanted, "DESTROY_S", 0.3)
    lab.backend.after_create = created = Gate()
    lab.backend.before_destroy = _stops_slowly
    held = await _a_slot(lab)
    attempt = Attempt(lab, held)
    await created.reached.wait()
    await _gone(lab, held)

    if found == "by the cut":
        attempt.cut(CUTS["given up"])
    created.open()
    await attempt.ended()

    assert (held.agent_id in lab.cloud.live) is stands
    assert _asked_to_destroy(lab) == 1


async def _stops_slowly(_agent_id: str) -> None:
    await asyncio.sleep(1.5)


@pytest.mark.parametrize("at", ["before the cut", "not cut"])
async def test_what_was_closed_while_it_was_made_is_destroyed_whatever_cuts_in(
    lab: Lab, held: Started, at: str
) -> None:
    """The attempt itself finds at its confirmation that nobody wants the compute."""
    lab.backend.after_create = created = Gate()
    lab.backend.before_destroy = destroying = Gate()
    attempt = Attempt(lab, held)
    await created.reached.wait()
    await _gone(lab, held)
    created.open()
    await destroying.reached.wait()

    if at == "before the cut":
        attempt.cut(None)
    destroying.open()
    await attempt.ended()

    assert held.agent_id not in lab.cloud.live
    if at == "not cut":
        failed = attempt.task.exception()
        assert isinstance(failed, ApplicationError)
        assert (failed.type, failed.non_retryable) == (ErrorType.CLOSING, True)


async def test_an_agent_at_work_outlives_the_hand_back_of_its_spawn(lab: Lab) -> None:
    """It registers before its spawn has answered, and the worker leaves: the next one takes up what is there."""
    await lab.stop_host(lab.backend.host_id)
    lab.backend.after_create = gate = Gate()
    leaving = HandingBack()
    async with Worker(
        lab.temporal, task_queue=spawn_queue(SCALER), activities=[lab.compute(lab.backend).spawn],
        interceptors=[leaving],
    ):  # fmt: skip
        started = await lab.provision(job_id="job-1")
        await gate.reached.wait()
        await lab.adopt(started)
        await lab.reaches(started, S.ACTIVE)
        leaving.now()
        await until(lambda: not leaving.running)

    at_work = started.agent_id in lab.cloud.live
    gate.open()
    lab.start_host(lab.backend)
    await until(lambda: ("found", started.agent_id, lab.backend.host_id) in lab.cloud.log, what="the next attempt")
    await lab.complete(started)
    outcome = await lab.outcome(started)

    assert at_work
    assert outcome.end_reason is EndReason.COMPLETED
    assert lab.cloud.created(started.agent_id) == 1
    await lab.nothing_left()


@pytest.mark.scenario("S18")
@pytest.mark.parametrize("state", ["spawning", "spawned-unacknowledged"])
async def test_a_provision_that_is_cancelled_while_it_spawns_is_torn_down_once(lab: Lab, state: str) -> None:
    started = await AT[state](lab)

    await lab.hatchway.cancel(started.workflow_id)
    with pytest.raises(WorkflowFailureError):
        await asyncio.wait_for(lab.handle(started).result(), 60)

    assert _asked_to_destroy(lab) == 1
    assert lab.cloud.live == {}
    await lab.nothing_left()
