"""How to bring a provision to each of its ends. What the saved histories are recorded from, and what a test replays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from hatchway.client import ProvisionFailed, Started
from hatchway.errors import DestroyError, ErrorType, PermanentSpawnError, SpawnCode
from hatchway.model import EndReason, ProvisionState
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import ScriptedBackend
from tests.support.stack import laptop
from tests.support.states import AT, let_go
from tests.support.warm_endings import WARM_ENDS

S = ProvisionState


async def _over(lab: Lab, started: Started) -> Started:
    """Wait for the end, whatever it is."""
    try:
        await lab.outcome(started)
    except ProvisionFailed as e:
        lab.ended_with = e
    return started


async def completed(lab: Lab) -> Started:
    started = await AT["active"](lab)
    await lab.complete(started)
    return await _over(lab, started)


async def completed_with_container_auth(lab: Lab) -> Started:
    lab.environ["HATCHWAY_SECRET_TOKEN"] = "not-a-secret"
    await lab.apply({
        **laptop(),
        "secrets": {"contexts": {"vault": {"type": "env", "registries": ["reg.local"]}}},
    })  # fmt: skip
    started = await lab.provision(
        job_id="job-1", container={"image": "reg.local/app", "auth": {"tokenSecret": "vault:token"}}
    )
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.complete(started, "failed")
    return await _over(lab, started)


async def completed_after_waiting(lab: Lab) -> Started:
    started = await AT["queued"](lab)
    await let_go(lab, started)
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.complete(started)
    return await _over(lab, started)


async def drained_after_its_job(lab: Lab) -> Started:
    started = await AT["active"](lab)
    await lab.release(started, EndReason.DRAINED)

    async def asked() -> bool:
        row = await lab.slots.get(started.agent_id)
        return row is not None and row.drain_requested

    await until(asked)
    await lab.complete(started)
    return await _over(lab, started)


async def released_at_work(lab: Lab) -> Started:
    started = await AT["active"](lab)
    await lab.release(started, EndReason.OPERATOR, now=True)
    return await _over(lab, started)


async def handed_over_to_a_teardown(lab: Lab) -> Started:
    async def away(agent_id: str) -> None:
        raise DestroyError("the engine answered 500")

    await lab.apply(laptop(stopGraceSeconds=0))
    started = await AT["active"](lab)
    lab.backend.before_destroy = away
    await lab.complete(started)
    await _over(lab, started)
    await lab.hatchway.forget(started.workflow_id, started.agent_id)
    await lab.temporal.get_workflow_handle(f"teardown/{started.agent_id}").result()
    lab.cloud.live.clear()
    return started


async def spawned_by_a_second_host(lab: Lab) -> Started:
    made = False

    async def reply_lost(agent_id: str) -> None:
        nonlocal made
        if not made:
            made = True
            raise RuntimeError("the reply is lost")

    lab.backend.after_create = reply_lost
    started = await lab.provision(job_id="job-1")
    await until(lambda: made)
    await lab.stop_host("host-1")
    lab.start_host(ScriptedBackend(lab.cloud, host="host-2"))
    lab.start_host(lab.backend, spawns=False)
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.complete(started)
    return await _over(lab, started)


@asynccontextmanager
async def _row_locked(lab: Lab, agent_id: str) -> AsyncIterator[None]:
    """Whoever wants to change this row waits."""
    async with (
        await psycopg.AsyncConnection.connect(str(lab.db._pool.conninfo)) as other,
        other.transaction(),
    ):
        await other.execute("select from scaler_spawning_agents where agent_id = %s for update", [agent_id])
        yield


async def completed_while_the_store_was_away(lab: Lab) -> Started:
    """A database step that timed out inside its workflow task and went through the task queue instead."""
    started = await AT["active"](lab)
    await lab.outcomes.complete(started.agent_id, "r-1", "succeeded", 0)
    async with _row_locked(lab, started.agent_id):
        await lab.release(started, EndReason.COMPLETED)

        async def through_the_queue() -> bool:
            history = await lab.handle(started).fetch_history()
            return any(
                event.activity_task_scheduled_event_attributes.activity_type.name == "close" for event in history.events
            )

        await until(through_the_queue)
    return await _over(lab, started)


def cancelled_at(state: str) -> Callable[[Lab], Awaitable[Started]]:
    async def end(lab: Lab) -> Started:
        started = await AT[state](lab)
        await lab.hatchway.cancel(started.workflow_id)
        await let_go(lab, started)
        return await _over(lab, started)

    return end


async def invalid_request(lab: Lab) -> Started:
    handle = await lab.temporal.start_workflow("ProvisionWorkflow", {"labels": 7}, id="bad", task_queue="hatchway")
    started = Started("bad", handle.first_execution_run_id or "", "")
    return await _over(lab, started)


def ends(**request: Any) -> Callable[[Lab], Awaitable[Started]]:
    """A request that ends by itself."""

    async def end(lab: Lab) -> Started:
        return await _over(lab, await lab.provision(job_id="job-1", **request))

    return end


async def declined_at_capacity(lab: Lab) -> Started:
    await AT["queued"](lab)
    declined = await _over(lab, await lab.provision(job_id="job-2", on_capacity="decline"))
    await lab.hatchway.cancel("provision/job/job-1")
    await let_go(lab, declined)
    return declined


async def declined_after_waiting(lab: Lab) -> Started:
    await lab.apply(laptop(maxAgents=1))
    await lab.reaches(await lab.provision(job_id="blocker"), S.AWAITING_ADOPTION)
    declined = await _over(lab, await lab.provision(job_id="job-1", wait_timeout=0.3))
    await let_go(lab, declined)
    return declined


async def declined_as_it_never_fits(lab: Lab) -> Started:
    await lab.apply(laptop(maxAgents=0))
    return await _over(lab, await lab.provision(job_id="job-1"))


async def declined_as_the_job_has_an_agent(lab: Lab) -> Started:
    first = await AT["active"](lab)
    second = await _over(lab, await lab.provision("provision/mine", job_id="job-1"))
    await lab.complete(first)
    await lab.outcome(first)
    return second


async def declined_as_the_job_was_served(lab: Lab) -> Started:
    await completed(lab)
    return await _over(lab, await lab.provision("provision/mine", job_id="job-1"))


async def released_before_adoption(lab: Lab) -> Started:
    started = await AT["awaiting-adoption"](lab)
    await lab.release(started)
    return await _over(lab, started)


async def auth_refused(lab: Lab) -> Started:
    container = {"image": "reg.local/app", "auth": {"tokenSecret": "nowhere:token"}}
    return await _over(lab, await lab.provision(job_id="job-1", container=container))


async def spawn_failed(lab: Lab) -> Started:
    async def refuses(agent_id: str) -> None:
        raise PermanentSpawnError(SpawnCode.COMMAND_NOT_FOUND, "there is no such command")

    lab.backend.before_create = refuses
    return await _over(lab, await lab.provision(job_id="job-1"))


async def exited_before_it_registered(lab: Lab) -> Started:
    started = await AT["awaiting-adoption"](lab)
    await lab.exits(started, code=1, tail="cannot reach the gateway")
    return await _over(lab, started)


async def agent_lost(lab: Lab) -> Started:
    started = await AT["active"](lab)
    await lab.exits(started, code=137)
    return await _over(lab, started)


async def condemned(lab: Lab) -> Started:
    started = await AT["active"](lab)
    await lab.condemn(started)
    return await _over(lab, started)


async def adopted_by_other(lab: Lab) -> Started:
    started = await AT["active"](lab)
    await lab.adoption_refusal(started, registration="r-2")
    await lab.complete(started)
    return await _over(lab, started)


async def outlived(lab: Lab) -> Started:
    started = await lab.provision(job_id="job-1", max_lifetime=0.5)
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    return await _over(lab, started)


async def already_ended(lab: Lab) -> Started:
    return await _over(lab, await lab.reset(await completed(lab), to_start=True))


ENDS: dict[str, tuple[Callable[[Lab], Awaitable[Started]], ErrorType | None]] = {
    "completed": (completed, None),
    "completed-with-container-auth": (completed_with_container_auth, None),
    "completed-after-waiting": (completed_after_waiting, None),
    "completed-drained": (drained_after_its_job, None),
    "completed-released-at-work": (released_at_work, None),
    "completed-handed-over": (handed_over_to_a_teardown, None),
    "completed-bound-to-host": (spawned_by_a_second_host, None),
    "completed-store-away": (completed_while_the_store_was_away, None),
    "completed-adopted-by-other": (adopted_by_other, None),
    **{f"cancelled-at-{state}": (cancelled_at(state), None) for state in AT},
    "invalid-request": (invalid_request, ErrorType.INVALID_REQUEST),
    "no-matching-scaler": (ends(labels=["gpu"]), ErrorType.NO_MATCHING_SCALER),
    "declined-at-capacity": (declined_at_capacity, ErrorType.DECLINED),
    "declined-wait-timeout": (declined_after_waiting, ErrorType.DECLINED),
    "declined-never-fits": (declined_as_it_never_fits, ErrorType.DECLINED),
    "declined-job-has-agent": (declined_as_the_job_has_an_agent, ErrorType.DECLINED),
    "declined-job-served": (declined_as_the_job_was_served, ErrorType.DECLINED),
    "released": (released_before_adoption, ErrorType.RELEASED),
    "auth-refused": (auth_refused, ErrorType.AUTH_REFUSED),
    "spawn-failed": (spawn_failed, ErrorType.SPAWN_FAILED),
    "spawn-failed-exited": (exited_before_it_registered, ErrorType.SPAWN_FAILED),
    "adoption-timeout": (ends(adoption_timeout=0.3), ErrorType.ADOPTION_TIMEOUT),
    "agent-lost": (agent_lost, ErrorType.AGENT_LOST),
    "agent-lost-condemned": (condemned, ErrorType.AGENT_LOST),
    "lifetime-exceeded": (outlived, ErrorType.LIFETIME_EXCEEDED),
    "already-ended": (already_ended, ErrorType.ALREADY_ENDED),
    **WARM_ENDS,
}
"""History to how it comes about, and the type that the provision fails with (None: completed, cancelled)."""
