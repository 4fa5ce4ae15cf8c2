"""An open workflow whose row is lost, as by a restored backup, gets it back: counted, not capped."""

from __future__ import annotations

import pytest

from hatchway.client import Started
from hatchway.errors import ErrorType
from hatchway.exits import Exits
from hatchway.liveness import open_workflow_of
from hatchway.model import ComputeExit, ProvisionState
from hatchway.store.rows import SpawnRow
from hatchway.store.waiters import Line
from tests.integration.reclaim.rig import Home
from tests.support.namespaces import until
from tests.support.scripted import Gate
from tests.support.stack import laptop

S = ProvisionState


async def _row(home: Home, started: Started) -> SpawnRow:
    row = await home.lab.slots.get(started.agent_id)
    assert row is not None
    return row


async def _counted(home: Home) -> int:
    rows = await home.lab.db.fetch_all("select agents from scaler_capacity where scope = 'scaler:laptop'")
    return int(rows[0][0])


async def test_the_row_of_an_agent_at_work_is_written_again_and_it_ends_as_any_other(home: Home) -> None:
    started = await home.at_work(job_id="job-1", run_id="run-1", resources={"requests": {"cpus": 0.5}})
    before = await _row(home, started)
    await home.loses_rows(started.agent_id)

    outcome = await home.reclaim()
    second = await home.reclaim()
    after = await _row(home, started)
    counted = await _counted(home)

    assert outcome.restored == [started.agent_id]
    assert (second.restored, second.sighted, second.reclaimed) == ([], [], [])
    for field in (
        "scaler", "state", "label_set", "mandatory_labels", "roles", "backend_type", "job_id", "bound_job_id", "run_id",
        "workflow_id", "workflow_first_run_id", "host_id", "adopted_by",
    ):  # fmt: skip
        assert getattr(after, field) == getattr(before, field), field
    assert after.teardown_facts is not None
    assert counted == 1
    await home.lab.handle(started).cancel()
    await home.lab.nothing_left()


async def test_an_agent_that_is_not_adopted_yet_has_its_deadline_again(home: Home) -> None:
    started = await home.lab.provision(job_id="job-1")
    await home.lab.reaches(started, S.AWAITING_ADOPTION)
    before = await _row(home, started)
    await home.loses_rows(started.agent_id)

    outcome = await home.reclaim()
    after = await _row(home, started)

    assert outcome.restored == [started.agent_id]
    assert (after.state, after.adopted_by) == (before.state, None)
    assert after.deadline_at is not None
    assert before.deadline_at is not None
    assert abs((after.deadline_at - before.deadline_at).total_seconds()) < 10
    await home.lab.handle(started).cancel()
    await home.lab.nothing_left()


async def test_it_counts_above_the_cap_and_holds_the_next_one_back(home: Home) -> None:
    await home.lab.apply(laptop(maxAgents=1))
    lost = await home.at_work(job_id="job-1")
    await home.loses_rows(lost.agent_id)
    taken = await home.at_work(job_id="job-2")  # the cap is one, and nobody knew of the other

    outcome = await home.reclaim()
    counted = await _counted(home)
    waiting = await home.lab.provision(job_id="job-3")
    await home.lab.reaches(waiting, S.QUEUED)
    await home.lab.handle(taken).cancel()
    await until(lambda: taken.agent_id not in home.cloud.live)
    position = await home.lab.slots.waiting(waiting.agent_id)

    assert outcome.restored == [lost.agent_id]
    assert counted == 2
    assert position == 1
    await home.lab.handle(waiting).cancel()
    await home.lab.handle(lost).cancel()
    await home.lab.nothing_left()
    assert await Line(home.lab.db).list() == []


async def test_a_row_is_not_written_again_for_an_agent_whose_end_is_on_record(home: Home) -> None:
    """It is on its way out: its slot is released, and its workflow is about to close."""
    started = await home.at_work(job_id="job-1")
    await home.lab.slots.release(started.agent_id, "operator")

    outcome = await home.reclaim()

    assert (outcome.restored, outcome.sighted, outcome.failed) == ([], [], {})
    assert await home.lab.slots.get(started.agent_id) is None
    assert set(home.cloud.live) == {started.agent_id}
    await home.lab.handle(started).cancel()
    await home.lab.nothing_left()


async def test_a_row_that_cannot_be_put_together_is_told_and_its_agent_is_left_alone(home: Home) -> None:
    started = await home.at_work(job_id="job-1")
    await home.loses_rows(started.agent_id)
    other = laptop()
    other["scalers"][0]["name"] = "another"
    await home.lab.apply(other)

    outcomes = [await home.reclaim() for _ in range(3)]

    for outcome in outcomes:
        assert "scaler laptop has left the configuration" in outcome.failed[started.agent_id]
        assert (outcome.restored, outcome.sighted, outcome.reclaimed) == ([], [], [])
    assert set(home.cloud.live) == {started.agent_id}
    await home.lab.handle(started).cancel()
    await home.lab.nothing_left()


@pytest.mark.parametrize("state", [S.SPAWNING, S.AWAITING_ADOPTION, S.ACTIVE])
@pytest.mark.parametrize("reset", [False, True], ids=["as it was started", "reset"])
async def test_the_open_workflow_of_an_agent_is_found_by_the_agents_id_alone(
    home: Home, state: ProvisionState, reset: bool
) -> None:
    gate = Gate()
    if state is S.SPAWNING:
        home.backend.after_create = gate
    started = await home.lab.provision(job_id="job-1")
    await home.lab.reaches(started, state if state is not S.ACTIVE else S.AWAITING_ADOPTION)
    if state is S.ACTIVE:
        await home.lab.adopt(started)
    if reset:
        started = await home.lab.reset(started, to_start=True)

    async def listed() -> bool:  # a list of the server's is a moment late
        return await open_workflow_of(home.lab.temporal, started.agent_id) is not None

    await until(listed, what="the workflow is found")
    found = await open_workflow_of(home.lab.temporal, started.agent_id)
    gate.open()
    await home.lab.handle(started).terminate("by test")

    assert found is not None
    assert found.workflow_id == started.workflow_id
    assert found.is_provision
    assert await open_workflow_of(home.lab.temporal, started.agent_id) is None


async def test_a_row_that_somebody_waits_for_is_not_written_beside_the_waiter(home: Home) -> None:
    """The backup knows an older agent of the job, in the line: with both, its turn would be a job with two agents."""
    started = await home.at_work(job_id="job-1")
    await home.loses_rows(started.agent_id)
    await _waits(home, "older", job_id="job-1")

    refused = await home.reclaim()
    await home.lab.db.fetch_all("delete from scaler_waiters")
    restored = await home.reclaim()

    assert list(refused.failed) == [started.agent_id]
    assert "job-1" in refused.failed[started.agent_id]
    assert restored.restored == [started.agent_id]
    await home.lab.handle(started).cancel()
    await home.lab.nothing_left()


async def test_an_agents_own_place_in_the_line_is_over_when_its_row_is_written_again(home: Home) -> None:
    started = await home.at_work(job_id="job-1")
    await home.loses_rows(started.agent_id)
    await _waits(home, started.agent_id, job_id="job-1")

    outcome = await home.reclaim()

    assert outcome.restored == [started.agent_id]
    assert await Line(home.lab.db).list() == []
    await home.lab.handle(started).cancel()
    await home.lab.nothing_left()


async def test_an_exit_is_heard_also_while_the_row_is_lost(home: Home) -> None:
    """Each is told once: what nobody hears then is never told again."""
    started = await home.at_work(job_id="job-1")
    await home.loses_rows(started.agent_id)
    home.cloud.live.clear()

    await Exits(home.lab.slots, home.lab.outcomes, home.lab.temporal).tell(
        ComputeExit(agent_id=started.agent_id, exit_code=3, log_tail="of a job")
    )

    failure = await home.lab.failure(started)
    assert failure.error_type == ErrorType.AGENT_LOST
    assert "of a job" not in str(failure)
    await home.lab.nothing_left()


async def _waits(home: Home, agent_id: str, job_id: str) -> None:
    await home.lab.db.fetch_all(
        """
        insert into scaler_waiters (agent_id, rank, scaler_name, priority, seq, mcpu, mem_bytes, workflow_id, job_id,
                                    spawn, config_version)
        values (%(agent_id)s, 1, 'laptop', 3, nextval('scaler_waiters_seq'), 0, 0, 'w', %(job_id)s, '{}', 1)
        """,
        {"agent_id": agent_id, "job_id": job_id},
    )
