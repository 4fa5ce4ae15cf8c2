"""What one pass does at most, several backends on one host, and hosts that nobody polls."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Worker

from activities.models import Looked, LookInput, Reclaimed, ReclaimInput, RetireAnswer
from activities.reclaim import LOOKED_AT_A_PASS, PAGE, ReclaimActivities
from activities.restoring import Restoring
from hatchway.config.current import CurrentConfig
from hatchway.errors import ErrorType, HatchwayError
from hatchway.metrics import Metrics
from hatchway.model import ReclaimOutcome, ReclaimRequest, Sighting
from hatchway.store.config_versions import ConfigVersions
from hatchway.store.reclaiming import Reclaiming
from hatchway.task_queues import CONTROL, host_queue
from hatchway.tie import NamespaceTie
from tests.integration.reclaim.rig import HOST, Home, OwnedBackend, SharedCloud, reclaim
from tests.support.namespaces import Namespaces
from tests.support.temporal_fixtures import TemporalServer
from workflows.reclaim import DESTROYED_A_PASS, ReclaimWorkflow

NOW = datetime.now(UTC)


def an_agent_id() -> str:
    return f"scaler-{uuid.uuid4().hex}"


def sighted(*agent_ids: str, backend: str = "bare-metal") -> list[Sighting]:
    return [Sighting(agent_id=agent_id, backend=backend, since=NOW) for agent_id in agent_ids]


# ── a look ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _activities(home: Home, **backends: OwnedBackend) -> ReclaimActivities:
    lab, store = home.lab, Reclaiming(home.lab.db)
    restoring = Restoring(store, CurrentConfig(ConfigVersions(lab.db), {}), lab.temporal, "linux/amd64")
    return ReclaimActivities(
        HOST, {kind.replace("_", "-"): backend for kind, backend in backends.items()}, lab.installation, store,
        NamespaceTie(lab.db, lab.temporal), lab.temporal, restoring, Metrics.of(lab.temporal),
    )  # fmt: skip


async def _look(activities: ReclaimActivities, *before: Sighting) -> Looked:
    looked = await ActivityEnvironment().run(activities.look, LookInput(before=list(before), now=NOW))
    assert isinstance(looked, Looked)
    return looked


async def test_a_look_asks_after_a_bounded_number_and_first_after_those_it_has_seen_before(home: Home) -> None:
    many = [an_agent_id() for _ in range(PAGE + 20)]
    for agent_id in many:
        await home.orphan(agent_id)
    known = sighted(*many[-3:])

    looked = await _look(_activities(home, bare_metal=home.backend), *known)

    assert looked.seen == PAGE + 20
    assert len(looked.sighted) == LOOKED_AT_A_PASS
    assert looked.more == PAGE + 20 - LOOKED_AT_A_PASS
    assert all(sighting in looked.sighted for sighting in known)


async def test_a_backend_that_fails_hides_no_other_one_of_its_host(home: Home) -> None:
    agent_id, hidden = an_agent_id(), an_agent_id()
    away = OwnedBackend(SharedCloud(), host=HOST, installation=home.lab.installation)
    away.cloud.create_for(home.lab.installation, hidden)
    await home.orphan(agent_id)

    async def breaks_off(_agent_id: str) -> None:
        raise HatchwayError("the engine went away")

    away.after_listed = breaks_off
    looked = await _look(_activities(home, container=away, bare_metal=home.backend))

    assert looked.listed == ["bare-metal"]
    assert [sighting.agent_id for sighting in looked.sighted] == [agent_id]
    assert "the engine went away" in looked.failed["container"]
    assert looked.seen == 1


# ── passes, with a host that answers as told ────────────────────────────────────────────────────────────────────


class ToldHost:
    """Answers looks with what a test says, and keeps what it was told to destroy."""

    def __init__(self) -> None:
        self.answers: list[Looked] = []
        self.heard: list[list[Sighting]] = []
        self.destroyed: list[str] = []

    @activity.defn(name="reclaim_look")
    async def look(self, ask: LookInput) -> Looked:
        self.heard.append(ask.before)
        return self.answers.pop(0)

    @activity.defn(name="reclaim_destroy")
    async def destroy(self, ask: ReclaimInput) -> Reclaimed:
        self.destroyed.append(ask.agent_id)
        return Reclaimed()


@asynccontextmanager
async def _told(temporal: Client) -> AsyncIterator[ToldHost]:
    host = ToldHost()
    async with (
        Worker(temporal, task_queue=CONTROL, workflows=[ReclaimWorkflow]),
        Worker(temporal, task_queue=host_queue(HOST), activities=[host.look, host.destroy]),
    ):
        yield host


async def test_what_a_backend_did_not_list_this_time_was_neither_seen_again_nor_seen_gone(
    namespaces: Namespaces,
) -> None:
    """Workers of one host may reach different backends, and any of them takes a look."""
    temporal = await namespaces.take()
    here, elsewhere = sighted("scaler-1", backend="container"), sighted("scaler-2")
    async with _told(temporal) as host:
        host.answers = [
            Looked(listed=["container", "bare-metal"], sighted=[*here, *elsewhere]),
            Looked(listed=["container"], sighted=[]),
            Looked(listed=["bare-metal"], sighted=elsewhere),
        ]
        first, second, third = [await reclaim(temporal) for _ in range(3)]

    assert first.reclaimed == []
    assert second.reclaimed == []
    assert second.sighted == elsewhere
    assert third.reclaimed == ["scaler-2"]
    assert host.heard == [[], [*here, *elsewhere], elsewhere]
    assert host.destroyed == ["scaler-2"]


async def test_what_a_backend_that_has_left_once_listed_is_forgotten_after_a_day(namespaces: Namespaces) -> None:
    temporal = await namespaces.take()
    now = datetime.now(UTC)
    old = Sighting(agent_id="scaler-1", backend="container", since=now - timedelta(hours=25))
    young = Sighting(agent_id="scaler-2", backend="container", since=now - timedelta(hours=23))
    async with _told(temporal) as host:
        host.answers = [Looked(listed=["container"], sighted=[old, young]), Looked(listed=["bare-metal"])]
        _, second = [await reclaim(temporal) for _ in range(2)]

    assert second.sighted == [young]
    assert host.destroyed == []


async def test_a_pass_destroys_a_bounded_number_and_the_rest_keeps_its_turn(namespaces: Namespaces) -> None:
    temporal = await namespaces.take()
    many = sighted(*[an_agent_id() for _ in range(DESTROYED_A_PASS + 5)])
    async with _told(temporal) as host:
        host.answers = [Looked(listed=["bare-metal"], sighted=many)] * 2
        _, second = [await reclaim(temporal) for _ in range(2)]
        host.answers = [Looked(listed=["bare-metal"], sighted=second.sighted)]
        third = await reclaim(temporal)

    assert len(second.reclaimed) == DESTROYED_A_PASS
    assert len(second.sighted) == 5
    assert sorted(third.reclaimed) == sorted(sighting.agent_id for sighting in second.sighted)
    assert len(set(host.destroyed)) == len(host.destroyed) == DESTROYED_A_PASS + 5


# ── nobody polls ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("retired", [True, False])
async def test_a_pass_over_a_host_that_nobody_polls_says_so_or_retires_it(
    temporal: TemporalServer, monkeypatch: pytest.MonkeyPatch, retired: bool
) -> None:
    # The workflow's own module is loaded anew for each run, the one that it takes this from is not.
    monkeypatch.setattr("workflows.steps.NOBODY_POLLS_AFTER", timedelta(seconds=1))
    asked: list[str] = []
    queue = f"control-{uuid.uuid4().hex}"

    @activity.defn(name="reclaim_retire")
    async def retire(ask: ReclaimRequest) -> RetireAnswer:
        asked.append(ask.host_id)
        return RetireAnswer(retired=retired)

    async with Worker(temporal.client, task_queue=queue, workflows=[ReclaimWorkflow], activities=[retire]):
        passing = temporal.client.execute_workflow(
            ReclaimWorkflow.run, ReclaimRequest(host_id="host-gone"), id=f"reclaim-{queue}", task_queue=queue
        )
        if retired:
            outcome = await passing
            assert outcome == ReclaimOutcome(retired=True)
        else:
            with pytest.raises(WorkflowFailureError) as failure:
                await passing
            assert isinstance(failure.value.cause, ApplicationError)
            assert failure.value.cause.type == ErrorType.RECLAIM_FAILED
            assert "nobody polls host host-gone" in failure.value.cause.message
    assert asked == ["host-gone"]
