"""How provisions end: agents' completions, the decided outcome, and why an agent is turned away."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from psycopg.types.json import Jsonb

from hatchway.store.pool import Database
from hatchway.store.rows import OutcomeRow, SpawnRow

__all__ = ["Completed", "CompletionRefused", "OutcomeRow", "Outcomes", "Refusal"]


@dataclass(frozen=True, slots=True)
class Completed:
    """The completion is committed. `result` and `exit_code` are those of the first call."""

    agent_id: str
    workflow_id: str | None
    first_run_id: str | None
    closing: bool
    result: str
    exit_code: int | None
    row: SpawnRow


class CompletionRefused(StrEnum):
    GONE = "gone"
    """No row: it was released."""
    OTHER_REGISTRATION = "other-registration"
    """Another process of this agent is the one that was adopted, or none was."""


@dataclass(frozen=True, slots=True)
class Refusal:
    kind: Literal["tearing-down", "ended"]
    end_reason: str | None


class Outcomes:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def complete(
        self, agent_id: str, registration_id: str, result: str, exit_code: int | None
    ) -> Completed | CompletionRefused:
        """Commit what the agent says of its job. Also while the row is closing; a repeat changes nothing."""
        answer = await self._db.call(
            "hatchway_complete",
            {"agent_id": agent_id, "registration_id": registration_id, "result": result, "exit_code": exit_code},
        )
        if answer["answer"] != "completed":
            return CompletionRefused(answer["answer"])
        return Completed(
            answer["agent_id"],
            answer["workflow_id"],
            answer["workflow_first_run_id"],
            answer["closing"],
            answer["result"],
            answer["exit_code"],
            SpawnRow.from_json(answer["row"]),
        )

    async def completion(self, agent_id: str) -> tuple[str, int | None] | None:
        """(result, exit code) that the agent has committed, or None."""
        row = await self._db.fetch_one(
            """
            select result, exit_code
              from scaler_agent_jobs
             where agent_id = %(agent_id)s and completed_at is not null
            """,
            {"agent_id": agent_id},
        )
        return None if row is None else (row[0], row[1])

    async def decide(self, agent_id: str, end_reason: str, result: str | None) -> OutcomeRow:
        """Decide the outcome, once: answers what was decided, by this call or an earlier one.

        A recorded completion beats `end_reason` and `result`. `Slots.release` does the same in passing.
        """
        answer = await self._db.call(
            "hatchway_decide", {"agent_id": agent_id, "end_reason": end_reason, "result": result}
        )
        return OutcomeRow.from_json(answer)

    async def get(self, agent_id: str) -> OutcomeRow | None:
        row = await self._db.fetch_value(
            """
            select to_jsonb(o) || jsonb_build_object('exit_code', j.exit_code)
              from scaler_provision_outcomes o
              left join scaler_agent_jobs j using (agent_id)
             where o.agent_id = %(agent_id)s
            """,
            {"agent_id": agent_id},
        )
        return None if row is None else OutcomeRow.from_json(row)

    async def by_job(self, job_id: str) -> list[OutcomeRow]:
        """Every kept outcome of this job's agents, newest first."""
        rows = await self._db.fetch_all(
            """
            select to_jsonb(o) || jsonb_build_object('exit_code', j.exit_code)
              from scaler_provision_outcomes o
              left join scaler_agent_jobs j using (agent_id)
             where o.job_id = %(job_id)s
             order by o.recorded_at desc
            """,
            {"job_id": job_id},
        )
        return [OutcomeRow.from_json(row) for (row,) in rows]

    async def refusal(self, agent_id: str) -> Refusal | None:
        """Why the agent is turned away; None when nothing is known against it."""
        answer = await self._db.fetch_value(
            "select public.hatchway_refusal(%(arguments)s)", {"arguments": Jsonb({"agent_id": agent_id})}
        )
        return None if answer is None else Refusal(answer["kind"], answer["end_reason"])
