"""Who is alive: agents' heartbeats, in batches, and the instances that take them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from hatchway import heartbeats
from hatchway.store.adoption import INSTANCE_TIMEOUT
from hatchway.store.pool import Database
from hatchway.store.rows import seconds


class Beat(StrEnum):
    """What an agent hears. Anything but `ok` means: stop."""

    OK = "ok"
    STOP = "stop"
    UNKNOWN = "unknown"
    OTHER_REGISTRATION = "other-registration"


@dataclass(frozen=True, slots=True)
class BeatAnswer:
    answer: Beat
    end_reason: str | None
    drain: bool
    job_id: str | None
    """The job that it is bound to; None while it is warm."""
    run_id: str | None
    idle: bool = False
    """Warm, and without a job: it asks again soon."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A worker or gateway process with a stable id."""

    instance_id: str
    kind: str
    version: str | None
    host_ids: list[str]
    boot_id: str | None
    alive_since: datetime
    last_seen_at: datetime


class Presence:
    def __init__(
        self,
        db: Database,
        instance_timeout: timedelta = INSTANCE_TIMEOUT,
        agent_heartbeat: timedelta = heartbeats.AGENT,
    ) -> None:
        self._db = db
        self._instance_timeout = instance_timeout
        self._gap = heartbeats.BEATS * agent_heartbeat
        """Who was silent for longer was out of reach. What is said of that way begins anew."""

    async def beat(self, instance_id: str, agents: Iterable[tuple[str, str]]) -> dict[str, BeatAnswer]:
        """Record a batch of heartbeats, (agent_id, registration_id) each, in one statement. An answer for each."""
        # One beat an agent: a second in the same batch says nothing new.
        batch = list(dict(agents).items())
        if not batch:
            return {}
        answers = await self._db.call(
            "hatchway_beat", {"instance_id": instance_id, "agents": batch, "gap_s": seconds(self._gap)}
        )
        return {
            a["agent_id"]: BeatAnswer(
                Beat(a["answer"]), a["end_reason"], a["drain"], a["job_id"], a["run_id"], a["idle"]
            )
            for a in answers
        }

    async def instance_beat(
        self, instance_id: str, kind: str, version: str, host_ids: Sequence[str], boot_id: str | None
    ) -> None:
        """This process (kind `worker` or `gateway`) is alive. After a gap it counts as alive since now."""
        await self._db.call(
            "hatchway_instance_beat",
            {
                "instance_id": instance_id,
                "kind": kind,
                "version": version,
                "host_ids": list(host_ids),
                "boot_id": boot_id,
                "silent_s": seconds(self._instance_timeout),
            },
        )

    async def live_instances_with_host(self, host_id: str) -> list[Instance]:
        """Instances that reach this host and are not silent. For a machine's id, another boot id is a conflict."""
        rows = await self._db.fetch_all(
            """
            select instance_id, kind, version, host_ids, boot_id, alive_since, last_seen_at
              from scaler_instances
             where %(host_id)s = any (host_ids)
               and last_seen_at > now() - %(timeout)s
             order by instance_id
            """,
            {"host_id": host_id, "timeout": self._instance_timeout},
        )
        return [Instance(*row) for row in rows]
