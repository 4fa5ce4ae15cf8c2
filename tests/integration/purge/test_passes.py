"""PurgeWorkflow: every kind by itself, by the retention of the configuration in force, and nothing live is touched."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from hatchway.errors import ErrorType
from hatchway.model import EndReason, PurgeKind, SweepOutcome
from tests.support.lab import Lab
from tests.support.stack import laptop
from tests.support.states import AT


async def _spent(lab: Lab, days: int) -> None:
    """One of each kind that nobody needs, so old."""
    for statement in (
        "insert into scaler_provision_outcomes (agent_id, updated_at)"
        " values ('o', now() - make_interval(days => %(days)s))",
        "insert into scaler_agent_jobs (agent_id, correlated_at) values ('j', now() - make_interval(days => %(days)s))",
        "insert into scaler_agent_presence values ('p', 'g', now() - make_interval(days => %(days)s))",
        "insert into scaler_instances (instance_id, kind, last_seen_at)"
        " values ('i', 'worker', now() - make_interval(days => %(days)s))",
    ):
        await lab.db.fetch_all(statement, {"days": days})


def _purged(outcome: SweepOutcome) -> dict[str, int]:
    return {kind: step.done["purged"] for kind, step in outcome.steps.items() if step.done.get("purged")}


async def test_a_pass_deletes_what_is_past_the_retention_and_says_how_much(lab: Lab) -> None:
    await _spent(lab, days=3)

    first, second = await lab.purge(), await lab.purge()

    assert set(first.steps) == set(PurgeKind)
    assert _purged(first) == {"outcomes": 1, "jobs": 1, "presence": 1, "instances": 1}
    assert _purged(second) == {}


async def test_the_retention_is_that_of_the_configuration_in_force(lab: Lab) -> None:
    await lab.apply({**laptop(), "reaper": {"outcomeRetentionSeconds": 7 * 86_400}})
    await _spent(lab, days=3)

    kept = await lab.purge()
    await lab.apply({**laptop(), "reaper": {"outcomeRetentionSeconds": 86_400}})
    gone = await lab.purge()

    assert _purged(kept) == {"presence": 1}
    assert _purged(gone) == {"outcomes": 1, "jobs": 1, "instances": 1}


async def test_a_kind_that_fails_holds_up_no_other_and_the_pass_says_which(lab: Lab) -> None:
    await _spent(lab, days=3)
    await lab.db.fetch_all("alter table scaler_agent_jobs rename to away")

    with pytest.raises(WorkflowFailureError) as failure:
        await lab.purge()

    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == ErrorType.PURGE_FAILED
    assert failure.value.cause.message.startswith("jobs: ")
    left = [
        await lab.db.fetch_value(f"select count(*) from {table}")  # noqa: S608
        for table in ("scaler_provision_outcomes", "scaler_agent_presence", "scaler_instances", "away")
    ]
    assert left == [0, 0, 0, 1]
    await lab.db.fetch_all("alter table away rename to scaler_agent_jobs")


async def test_an_agent_that_is_months_old_at_work_loses_nothing(lab: Lab) -> None:
    started = await AT["active"](lab)
    tables = {
        "scaler_spawning_agents": ("spawned_at", "adopted_at", "deadline_at"),
        "scaler_pending_claims": ("expires_at", "created_at"),
        "scaler_agent_presence": ("last_seen_at",),
        "scaler_agent_jobs": ("correlated_at",),
        "scaler_provision_outcomes": ("updated_at", "recorded_at", "adopted_at"),
    }
    for table, columns in tables.items():
        sets = ", ".join(f"{column} = {column} - interval '90 days'" for column in columns)
        await lab.db.fetch_all(f"update {table} set {sets}")  # noqa: S608

    outcome = await lab.purge()

    assert _purged(outcome) == {"claims": 1}  # the one that it has used to get in
    await lab.complete(started)
    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
    await lab.nothing_left()
