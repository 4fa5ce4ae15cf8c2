"""What the store's rows look like in Python. Times are aware UTC, by the database's clock; sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from hatchway.model import ComputeRef, TeardownFacts


class SpawnState(StrEnum):
    """Where a slot stands. `granted`: the line gave it, its workflow has not taken it up yet."""

    GRANTED = "granted"
    RESERVED = "reserved"
    SPAWNED = "spawned"
    ACTIVE = "active"
    CLOSING = "closing"


@dataclass(frozen=True, slots=True)
class SpawnRow:
    """One agent's slot, as it stood at `read_at`."""

    agent_id: str
    scaler: str
    state: SpawnState
    label_set: list[str]
    mandatory_labels: list[str]
    provisioning_targets: list[str]
    roles: list[str]
    backend_type: str | None
    job_id: str | None
    """The job that it was made for."""
    bound_job_id: str | None
    """The only job that it may run; None while it is warm."""
    run_id: str | None
    workflow_id: str | None
    workflow_first_run_id: str | None
    owner_instance_id: str | None
    host_id: str | None
    """None: no effect can have happened."""
    compute: dict[str, Any] | None
    adopted_by: str | None
    adopted_at: datetime | None
    registration_id: str | None
    deadline_at: datetime | None
    closing_at: datetime | None
    end_reason: str | None
    drain_requested_at: datetime | None
    config_version: int | None
    state_version: int
    spawned_at: datetime
    read_at: datetime
    warm_key: str | None = None
    """What it was made as, ahead of jobs; None: for a request."""
    bound_by: str | None = None
    """The provision that has taken it for its job, while it was warm."""
    bound_workflow_id: str | None = None
    bound_first_run_id: str | None = None
    bound_at: datetime | None = None
    """When its own workflow took that job on."""
    engine: str | None = None
    """The container engine that may have made its compute; None: none was asked to."""

    @property
    def idle(self) -> bool:
        """Warm, and without a job that it runs."""
        return self.warm_key is not None and self.bound_at is None

    @property
    def closing(self) -> bool:
        return self.state is SpawnState.CLOSING

    @property
    def adopted(self) -> bool:
        return self.adopted_by is not None

    @property
    def age(self) -> timedelta:
        return self.read_at - self.spawned_at

    @property
    def drain_requested(self) -> bool:
        return self.drain_requested_at is not None

    @property
    def teardown_facts(self) -> TeardownFacts | None:
        """What a teardown may rely on. None when no host was stamped: nothing can have been spawned."""
        if self.host_id is None:
            return None
        compute = ComputeRef.model_validate(self.compute) if self.compute else None
        return TeardownFacts(
            backend_type=self.backend_type or "",
            host_id=self.host_id,
            provisioning_targets=self.provisioning_targets,
            endpoint=compute.endpoint if compute else None,
            compute=compute,
            engine=self.engine,
        )

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> SpawnRow:
        return cls(
            agent_id=row["agent_id"],
            scaler=row["scaler_name"],
            state=SpawnState(row["state"]),
            label_set=row["label_set"],
            mandatory_labels=row["mandatory_labels"],
            provisioning_targets=row["provisioning_targets"],
            roles=row["roles"],
            backend_type=row["backend_type"],
            job_id=row["job_id"],
            bound_job_id=row["bound_job_id"],
            run_id=row["run_id"],
            workflow_id=row["workflow_id"],
            workflow_first_run_id=row["workflow_first_run_id"],
            owner_instance_id=row["owner_instance_id"],
            host_id=row["host_id"],
            compute=row["compute"],
            adopted_by=row["adopted_by"],
            adopted_at=moment(row["adopted_at"]),
            registration_id=row["registration_id"],
            deadline_at=moment(row["deadline_at"]),
            closing_at=moment(row["closing_at"]),
            end_reason=row["end_reason"],
            drain_requested_at=moment(row["drain_requested_at"]),
            config_version=row["config_version"],
            state_version=row["state_version"],
            spawned_at=instant(row["spawned_at"]),
            read_at=instant(row["read_at"]),
            warm_key=row["warm_key"],
            bound_by=row["bound_by"],
            bound_workflow_id=row["bound_workflow_id"],
            bound_first_run_id=row["bound_first_run_id"],
            bound_at=moment(row["bound_at"]),
            engine=row["engine"],
        )


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """How an agent ended, or is ending. Kept for the outcome retention after its row is gone."""

    agent_id: str
    job_id: str | None
    scaler: str | None
    result: str | None
    end_reason: str | None
    decided_at: datetime | None
    adopted_by: str | None
    adopted_at: datetime | None
    condemned_reason: str | None
    condemned_at: datetime | None
    closed_at: datetime | None
    exit_code: int | None = None
    """Of the agent's own completion, where it is known with the row."""

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> OutcomeRow:
        return cls(
            agent_id=row["agent_id"],
            job_id=row["job_id"],
            scaler=row["scaler_name"],
            result=row["result"],
            end_reason=row["end_reason"],
            decided_at=moment(row["decided_at"]),
            adopted_by=row["adopted_by"],
            adopted_at=moment(row["adopted_at"]),
            condemned_reason=row["condemned_reason"],
            condemned_at=moment(row["condemned_at"]),
            closed_at=moment(row["closed_at"]),
            exit_code=row.get("exit_code"),
        )


@dataclass(frozen=True, slots=True)
class Wake:
    """A workflow to signal `granted`: it has a slot that it has not taken up, or its place in the line is void."""

    workflow_id: str
    first_run_id: str | None
    agent_id: str


def wakes(rows: Iterable[Mapping[str, Any]] | None) -> list[Wake]:
    return [Wake(r["workflow_id"], r["workflow_first_run_id"], r["agent_id"]) for r in rows or ()]


LONG_AGO = datetime(1, 1, 2, tzinfo=UTC)
FAR_AHEAD = datetime(9999, 12, 30, tzinfo=UTC)
"""Further than any clock goes. A day from the ends of what Python can count, for the sake of time zones."""


def instant(text: str) -> datetime:
    """A timestamptz out of JSON, whatever the session's time zone wrote it in.

    Postgres knows times that Python does not: `infinity`, `-infinity`, years before 1 and after 9999. Only a hand
    writes those. They are read as LONG_AGO and FAR_AHEAD, so that one such row hides no other one; see `is_a_time`.
    """
    try:
        return min(max(datetime.fromisoformat(text).astimezone(UTC), LONG_AGO), FAR_AHEAD)
    except (ValueError, OverflowError):
        return LONG_AGO if text.startswith("-") or text.endswith("BC") else FAR_AHEAD


def is_a_time(at: datetime | None) -> bool:
    """Whether this is what stands in the row, or nothing does. False: it was beyond what can be reckoned with."""
    return at is None or LONG_AGO < at < FAR_AHEAD


def moment(text: str | None) -> datetime | None:
    return None if text is None else instant(text)


def seconds(duration: timedelta | None) -> float | None:
    """A duration on its way into a function of the store."""
    return None if duration is None else duration.total_seconds()
