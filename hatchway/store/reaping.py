"""What the reaper reads, in pages, and the condemnation that it writes. The rules are in `0001_reaping.sql`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from hatchway.model import EndReason
from hatchway.reaping import Candidate, Rule, Way, Windows, has_lost_its_gateway, silence_needed
from hatchway.store.pool import Database
from hatchway.store.rows import SpawnRow, instant, is_a_time, moment, seconds

WALK = 2000
"""Rows that one statement looks at: some 10 ms."""

WAYS_AT_ONCE = 10
"""Ways that one statement looks at: one by which two thousand silent agents came takes up to 100 ms."""


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
        reached: dict[Way, datetime | None] = {}
        after: str | None = ""
        while after is not None:
            page = await self._db.call("hatchway_reap_page", {"after": after, "walk": walk, **_sight(windows)})
            now, since = instant(page["now"]), moment(page["gateway_since"])
            found = [_found(one, since) for one in page["candidates"]]
            readable = [one for one in found if _is_readable(one)]
            yield Page(
                now,
                await self._with_where_to_go(readable, reached, windows, now),
                [one.row.agent_id for one in found if not _is_readable(one)],
            )
            after = page["next"]

    async def _with_where_to_go(
        self, found: list[Found], reached: dict[Way, datetime | None], windows: Windows, now: datetime
    ) -> list[Found]:
        """The same, with what is known of other gateways for those whose own is gone.

        Each way is looked at once in a pass, and kept in `reached`: where a gateway dies there may be as many as hosts,
        on every page. The condemnation looks again.
        """
        lost = [one.row for one in found if has_lost_its_gateway(one.candidate, windows, now)]
        if not lost:
            return found
        urls = await self._db.call("hatchway_urls", {"agents": [row.agent_id for row in lost]})
        ways = {
            row.agent_id: Way(row.scaler, row.host_id, urls[row.agent_id])
            for row in lost
            if row.host_id and row.agent_id in urls
        }
        new = [way for way in set(ways.values()) if way not in reached]
        reached.update(dict.fromkeys(new))
        for first in range(0, len(new), WAYS_AT_ONCE):
            asked = [asdict(way) for way in new[first : first + WAYS_AT_ONCE]]
            answer = await self._db.call("hatchway_reached", {"ways": asked, **_sight(windows)})
            reached.update({Way(**one["way"]): moment(one["since"]) for one in answer})
        return [
            replace(one, candidate=replace(one.candidate, way=way, reached_since=reached[way]))
            if (way := ways.get(one.row.agent_id))
            else one
            for one in found
        ]

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
                        "deserted": sentence.rule is Rule.DESERTED,
                        "way": sentence.candidate.way and asdict(sentence.candidate.way),
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
    return {
        "flap_grace_s": seconds(windows.flap_grace),
        "silent_s": seconds(windows.instance_timeout),
        "agent_timeout_s": seconds(windows.agent_timeout),
    }


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
