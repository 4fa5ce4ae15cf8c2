"""Slots under the caps: reserve, the steps of a spawn, release (`migrations/0001_slots.sql` has the rules)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hatchway.store.pool import Database
from hatchway.store.reservations import (
    AlreadyEnded,
    AtCapacity,
    BackingOff,
    Bound,
    BoundKind,
    Candidate,
    Draining,
    Held,
    JobHasAgent,
    JobServed,
    NeverFits,
    PoolRefused,
    Reservation,
    ReserveAnswer,
    Waiting,
    Warm,
    parse_answer,
)
from hatchway.store.rows import SpawnRow, SpawnState, Wake, seconds, wakes

__all__ = [
    "AlreadyEnded",
    "AtCapacity",
    "BackingOff",
    "Bound",
    "BoundKind",
    "BoundToHost",
    "Candidate",
    "Closing",
    "Draining",
    "Held",
    "JobHasAgent",
    "JobServed",
    "NeverFits",
    "NoRow",
    "PoolRefused",
    "Released",
    "Reservation",
    "ReserveAnswer",
    "Slots",
    "SpawnRow",
    "SpawnState",
    "StampAnswer",
    "Stamped",
    "Waiting",
    "Wake",
    "Warm",
]


@dataclass(frozen=True, slots=True)
class Stamped:
    """The effect may be made here. `row.read_at` is the database's time at which the attempt began."""

    row: SpawnRow
    again: bool
    """An earlier attempt was told the same, and may have made the effect."""


@dataclass(frozen=True, slots=True)
class BoundToHost:
    """Another host may have made the effect already: try there."""

    host_id: str


@dataclass(frozen=True, slots=True)
class Closing:
    """It is being torn down: make no effect."""

    end_reason: str | None


@dataclass(frozen=True, slots=True)
class NoRow:
    """There is no slot: make no effect."""


StampAnswer = Stamped | BoundToHost | Closing | NoRow


@dataclass(frozen=True, slots=True)
class Released:
    """`existed`: this call gave the slot back. The end is what was decided, by this call or an earlier one."""

    existed: bool
    wake: list[Wake]
    end_reason: str | None
    result: str | None
    adopted_by: str | None = None


class Slots:
    """Reserve, the steps of a spawn, release. Every call may be repeated; a repeat settles a lost reply."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def reserve(self, wanted: Reservation) -> ReserveAnswer:
        """A slot, a place in the line, or a refusal that names what bound. One message."""
        answer = await self._db.call("hatchway_reserve", _reservation(wanted), admission=True)
        return parse_answer(answer)

    async def release(
        self, agent_id: str, end_reason: str, result: str | None = None, teardown: str | None = None
    ) -> Released:
        """Give the slot back, or leave the line, and decide the outcome unless that was done before.

        `teardown`: how the end of the compute is known; what the first release says stays. A completion that the agent
        has recorded beats `end_reason` and `result`. A reserve for this agent that is still on its way is refused from
        now on.
        """
        return await self._release(
            {"agent_id": agent_id, "end_reason": end_reason, "result": result, "teardown": teardown}
        )

    async def returned(self, agent_id: str) -> Released:
        """Give back the grant, the place in the line or the taken warm agent of a workflow that is gone (its signal was
        answered NOT_FOUND). Not a slot that it has taken up: its compute may still run.
        """
        return await self._release({"agent_id": agent_id, "end_reason": "cancelled", "only_granted": True})

    async def _release(self, arguments: Mapping[str, Any]) -> Released:
        answer = await self._db.call("hatchway_release", arguments, admission=True)
        return Released(
            answer["existed"], wakes(answer["wake"]),
            answer.get("end_reason"), answer.get("result"), answer.get("adopted_by"),
        )  # fmt: skip

    async def stamp_host(self, agent_id: str, host_id: str, attempt_deadline: timedelta | None = None) -> StampAnswer:
        """Say, before the effect, which host makes it. `attempt_deadline`, from now, becomes the row's deadline."""
        answer = await self._db.call(
            "hatchway_stamp_host",
            {"agent_id": agent_id, "host_id": host_id, "deadline_s": seconds(attempt_deadline)},
        )
        match answer["answer"]:
            case "stamped":
                return Stamped(SpawnRow.from_json(answer["row"]), answer["again"])
            case "bound-to-host":
                return BoundToHost(answer["host_id"])
            case "closing":
                return Closing(answer["end_reason"])
            case _:
                return NoRow()

    async def stamp_engine(self, agent_id: str, engine: str) -> str | None:
        """Say, before the effect, which container engine makes it. The engine that was said first stays, and is the
        answer. None: the row is closing or gone, make no effect.
        """
        bound: str | None = await self._db.call("hatchway_stamp_engine", {"agent_id": agent_id, "engine": engine})
        return bound

    async def confirm_spawned(
        self, agent_id: str, compute: Mapping[str, Any], adoption_timeout: timedelta
    ) -> SpawnRow | None:
        """The compute is there; the adoption deadline runs from now, unless the agent was quicker.

        None when the row is closing or gone: the caller removes what it made.
        """
        row = await self._db.call(
            "hatchway_confirm_spawned",
            {"agent_id": agent_id, "compute": dict(compute), "adoption_timeout_s": seconds(adoption_timeout)},
        )
        return None if row is None else SpawnRow.from_json(row)

    async def request_drain(self, agent_id: str) -> bool:
        """Let the agent hear, in its next heartbeat's answer, that it should end. False when closing or gone."""
        return bool(await self._db.call("hatchway_request_drain", {"agent_id": agent_id}))

    async def get(self, agent_id: str) -> SpawnRow | None:
        row = await self._db.fetch_value(
            """
            select hatchway_row(s)
              from scaler_spawning_agents s
             where agent_id = %(agent_id)s
            """,
            {"agent_id": agent_id},
        )
        return None if row is None else SpawnRow.from_json(row)

    async def by_host(self, host_id: str) -> list[SpawnRow]:
        """Every agent whose effect this host has made, or may have."""
        rows = await self._db.fetch_all(
            """
            select hatchway_row(s)
              from scaler_spawning_agents s
             where host_id = %(host_id)s
             order by agent_id
            """,
            {"host_id": host_id},
        )
        return [SpawnRow.from_json(row) for (row,) in rows]

    async def waiting(self, agent_id: str) -> int | None:
        """The agent's place in the line, 1 is next; None when it does not wait."""
        position: int | None = await self._db.fetch_value(
            """
            select hatchway_position(%(agent_id)s)
             where exists (select from scaler_waiters where agent_id = %(agent_id)s)
            """,
            {"agent_id": agent_id},
        )
        return position

    async def list(self, scaler: str | None = None) -> list[SpawnRow]:
        """Every agent that holds a slot, oldest first; of one scaler, if named."""
        rows = await self._db.fetch_all(
            """
            select hatchway_row(s)
              from scaler_spawning_agents s
             where %(scaler)s::text is null or scaler_name = %(scaler)s
             order by spawned_at, agent_id
            """,
            {"scaler": scaler},
        )
        return [SpawnRow.from_json(row) for (row,) in rows]


def _reservation(wanted: Reservation) -> dict[str, Any]:
    """The arguments of `hatchway_reserve`. `spawn` is what the row gets, now or when the line grants it."""
    fill = {} if wanted.warm_target is None else {"warm_target": wanted.warm_target}
    return fill | {
        "agent_id": wanted.agent_id,
        "workflow_id": wanted.workflow_id,
        "job_id": wanted.job_id,
        "takes_warm": wanted.job_id is not None and any(c.takes_warm for c in wanted.candidates),
        "priority": wanted.priority,
        "wait": wanted.wait,
        "config_version": wanted.config_version,
        "wait_timeout_s": seconds(wanted.wait_timeout),
        "spawn": {
            "workflow_first_run_id": wanted.workflow_first_run_id,
            "run_id": wanted.run_id,
            "owner_instance_id": wanted.owner_instance_id,
            "reserved_for_s": seconds(wanted.reserved_for),
        },
        "candidates": [
            {
                "scaler": c.scaler,
                "mcpu": c.mcpu,
                "mem_bytes": c.mem_bytes,
                "takes_warm": c.takes_warm,
                "spawn": {
                    "takes_warm": c.takes_warm,
                    "made_warm": c.made_warm,
                    "label_set": c.label_set,
                    "mandatory_labels": c.mandatory_labels,
                    "backend_type": c.backend_type,
                    "provisioning_targets": c.provisioning_targets,
                    "roles": c.roles,
                },
            }
            for c in wanted.candidates
        ],
    }
