"""What the reaper reads, in pages, and the condemnation that it writes. The rules are in `0001_reaping.sql`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hatchway.model import EndReason
from hatchway.reaping import Candidate, Rule, Windows, silence_needed
from hatchway.store.pool import Database
from hatchway.store.rows import SpawnRow, instant, is_a_time, moment, seconds

WALK = 2000
"""Rows that one statement looks at: some 10 ms."""


@dataclass(frozen=True, slots=True)
class Found:
    """A candidate, and the row that a teardown would go by."""

    candidate: Candidate
    row: SpawnRow


@dataclass(frozen=True, slots=True)
class Page:
    now: datetime
    """The database's, of this read."""
    found: list[Found]
    unreadable: list[str]
    """Agents with a time that nothing can be reckoned by: nothing is known of them, so they are spared."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the reaper can see."""

    blocked: bool
    """Agents are silent, and no gateway has been there for long enough to have heard them."""
    unseen: int
    """How many that are."""
    gateway_since: datetime | None
    """Since when a gateway of now is alive; None: none is."""
    unknown: list[str]
    """Agents of whom nobody knows owner, gateway or workflow; a hundred at most."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """Whom to condemn, and for what."""

    candidate: Candidate
    rule: Rule
    end: EndReason


class Reaping:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def pages(self, windows: Windows, walk: int = WALK) -> AsyncGenerator[Page, None]:
        """Everybody whom the reaper may have something to say about, in pages by agent id, each one read."""
        after: str | None = ""
        while after is not None:
            page = await self._db.call("hatchway_reap_page", {"after": after, "walk": walk, **_sight(windows)})
            since = moment(page["gateway_since"])
            found = [_found(one, since) for one in page["candidates"]]
            yield Page(
                instant(page["now"]),
                [one for one in found if _is_readable(one)],
                [one.row.agent_id for one in found if not _is_readable(one)],
            )
            after = page["next"]

    async def condemn(self, sentences: Iterable[Sentence], windows: Windows) -> list[SpawnRow]:
        """Set them closing in one transaction, where all that they are condemned for is still true by the database.

        Answers the rows of those; nothing has happened to the others.
        """
        rows = await self._db.call(
            "hatchway_condemn",
            {
                "agents": [
                    {
                        "agent_id": sentence.candidate.agent_id,
                        "state_version": sentence.candidate.state_version,
                        "end_reason": sentence.end.value,
                        "absent_s": seconds(silence_needed(sentence.rule, windows)),
                    }
                    for sentence in sentences
                ],
                **_sight(windows),
            },
        )
        return [SpawnRow.from_json(row) for row in rows]

    async def sight(self, windows: Windows) -> Sight:
        """Whether the reaper is blind, and whom it cannot judge. For people and gauges."""
        since, sees = await self._gateways(windows)
        unseen = 0
        if not sees:
            unseen = await self._db.fetch_value(
                """
                select count(*)
                  from scaler_spawning_agents s
                  left join scaler_agent_presence p using (agent_id)
                 where s.adopted_by is not null and s.state <> 'closing'
                   and coalesce(p.last_seen_at, s.adopted_at, s.spawned_at) <= now() - %(grace)s::interval
                """,
                {"grace": windows.flap_grace},
            )
        rows = await self._db.fetch_all(
            """
            select agent_id
              from scaler_spawning_agents
             where owner_instance_id is null and adopted_by is null and workflow_id is null and state <> 'closing'
             order by agent_id
             limit 100
            """
        )
        return Sight(unseen > 0, unseen, since, [agent_id for (agent_id,) in rows])

    async def _gateways(self, windows: Windows) -> tuple[datetime | None, bool]:
        row = await self._db.fetch_one(
            """
            select min(alive_since), coalesce(min(alive_since) <= now() - %(grace)s::interval, false)
              from scaler_instances
             where kind = 'gateway' and last_seen_at > now() - %(silent)s::interval
               and isfinite(last_seen_at) and isfinite(alive_since)
            """,
            {"grace": windows.flap_grace, "silent": windows.instance_timeout},
        )
        return row or (None, False)


def _sight(windows: Windows) -> dict[str, float | None]:
    return {"flap_grace_s": seconds(windows.flap_grace), "silent_s": seconds(windows.instance_timeout)}


def _is_readable(found: Found) -> bool:
    one = found.candidate
    times = (one.spawned_at, one.adopted_at, one.last_seen_at, one.gateway_seen_at, one.deadline_at, one.closing_at)
    return all(map(is_a_time, times))


def _found(one: Mapping[str, Any], gateway_since: datetime | None) -> Found:
    row = SpawnRow.from_json(one["row"])
    return Found(
        Candidate(
            agent_id=row.agent_id,
            state_version=row.state_version,
            workflow_id=row.workflow_id,
            first_run_id=row.workflow_first_run_id,
            owner=row.owner_instance_id,
            adopted_by=row.adopted_by,
            adopted_at=row.adopted_at,
            spawned_at=row.spawned_at,
            last_seen_at=moment(one["last_seen_at"]),
            gateway_seen_at=moment(one["gateway_seen_at"]),
            gateway_since=gateway_since,
            deadline_at=row.deadline_at,
            closing_at=row.closing_at,
            # A word that only another release knows is none to this one.
            end_reason=EndReason(row.end_reason) if row.end_reason in set(EndReason) else None,
            condemned=one["condemned"],
            completed=one["completed"],
        ),
        row,
    )
