"""The referee: who wins, an agent that registers or somebody who tears its provision down."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from hatchway.store.pool import Database
from hatchway.store.rows import SpawnRow, seconds

INSTANCE_TIMEOUT = timedelta(seconds=45)
"""Silence after which a gateway counts as gone: four of its 10 s heartbeats, and a little."""


@dataclass(frozen=True, slots=True)
class Adopted:
    row: SpawnRow


@dataclass(frozen=True, slots=True)
class NoSuchProvision:
    """The agent has no row: never had, or was released."""


@dataclass(frozen=True, slots=True)
class TearingDown:
    end_reason: str | None


@dataclass(frozen=True, slots=True)
class AdoptedByOther:
    """Another process of this agent has registered, and it or its gateway was seen not long ago."""

    instance_id: str


AdoptAnswer = Adopted | NoSuchProvision | TearingDown | AdoptedByOther


@dataclass(frozen=True, slots=True)
class CloseAnswer:
    """`closing`: tear it down (now, or already). `adopted`: the deadline lost. `gone`: no row."""

    kind: Literal["closing", "adopted", "gone"]
    row: SpawnRow | None
    end_reason: str | None
    """Of whoever closed first; of the outcome when the row is gone."""
    released: bool = False
    """The row is gone because its slot was given back by somebody who knew of the compute's end, and was not lost."""
    teardown: str | None = None
    """How it was known, as the release said it."""


class Adoption:
    """Adopt and close, each one guarded update of the spawn row. Both may be repeated."""

    def __init__(self, db: Database, instance_timeout: timedelta = INSTANCE_TIMEOUT) -> None:
        self._db = db
        self._instance_timeout = instance_timeout

    async def adopt(
        self, agent_id: str, instance_id: str, registration_id: str, lifetime: timedelta | None = None
    ) -> AdoptAnswer:
        """The agent has reached this instance. Its token stops expiring and its scaler's backoff is over.

        `lifetime`, from the first adoption, becomes the row's deadline. The same registration may come again, also
        through another instance; another one only after both the agent and its instance have been silent.
        """
        answer = await self._db.call(
            "hatchway_adopt",
            {
                "agent_id": agent_id,
                "instance_id": instance_id,
                "registration_id": registration_id,
                "silent_s": seconds(self._instance_timeout),
                "lifetime_s": seconds(lifetime),
            },
        )
        match answer["answer"]:
            case "adopted":
                return Adopted(SpawnRow.from_json(answer["row"]))
            case "tearing-down":
                return TearingDown(answer["end_reason"])
            case "adopted-by-other":
                return AdoptedByOther(answer["instance_id"])
            case _:
                return NoSuchProvision()

    async def close(self, agent_id: str, end_reason: str, only_unadopted: bool) -> CloseAnswer:
        """The first step of every teardown. `only_unadopted`: a deadline's close, which an adoption beats."""
        answer = await self._db.call(
            "hatchway_close", {"agent_id": agent_id, "end_reason": end_reason, "only_unadopted": only_unadopted}
        )
        row = None if answer["row"] is None else SpawnRow.from_json(answer["row"])
        return CloseAnswer(
            answer["answer"], row, answer["end_reason"], bool(answer.get("released")), answer.get("teardown")
        )
