"""What a reclaim pass asks of the store: which agents have no row, and to write a lost one again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from hatchway.model import ComputeRef
from hatchway.store.adoption import INSTANCE_TIMEOUT
from hatchway.store.pool import Database
from hatchway.store.rows import seconds


class Restored(StrEnum):
    """What became of a row that was to be written again."""

    RESTORED = "restored"
    THERE = "there"
    """It has one by now."""
    ENDED = "ended"
    """Its end is on record: its workflow is about to close."""
    NO_SUCH_SCALER = "no-such-scaler"
    JOB_HAS_AGENT = "job-has-agent"
    """Another agent has the job."""


@dataclass(frozen=True)
class LostRow:
    """What is known of an agent that has compute and an open workflow, but no row."""

    agent_id: str
    scaler: str
    workflow_id: str
    first_run_id: str
    job_id: str | None
    run_id: str | None
    label_set: list[str]
    mandatory_labels: list[str]
    roles: list[str]
    backend_type: str
    mcpu: int
    mem_bytes: int
    config_version: int
    compute: ComputeRef
    adopted_by: str | None
    deadline_at: datetime | None
    """Until when it may be adopted, as its workflow has it; nothing to one that is adopted."""
    adoption_timeout: timedelta
    """From now, by the database's clock, where its workflow has no deadline."""


@dataclass(frozen=True)
class LostAdoption:
    """What is known of an agent that has registered, and whose row does not know of that."""

    agent_id: str
    instance_id: str
    registration_id: str
    token_hash: str = field(repr=False)
    labels: list[str]


class Reclaiming:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def rowless(self, agent_ids: Collection[str]) -> set[str]:
        """Those of them that hold no slot, on whatever host."""
        rows = await self._db.fetch_all(
            """
            select agent_id
              from unnest(%(agent_ids)s::text[]) agent_id
             where not exists (select from scaler_spawning_agents s where s.agent_id = agent_id.agent_id)
            """,
            {"agent_ids": list(agent_ids)},
        )
        return {agent_id for (agent_id,) in rows}

    async def agents_on(self, host_id: str) -> int:
        """How many agents have had their effect on this host, or may have."""
        count: int = await self._db.fetch_value(
            "select count(*) from scaler_spawning_agents where host_id = %(host_id)s", {"host_id": host_id}
        )
        return count

    async def unadopted(self, agent_ids: Collection[str], older_than: timedelta) -> dict[str, tuple[str, str]]:
        """Those of them whose row has known no adoption for so long, each with its workflow and that one's first run.

        In a moment of a provision's life that is so of every agent; for longer, of few.
        """
        rows = await self._db.fetch_all(
            """
            select agent_id, workflow_id, workflow_first_run_id
              from scaler_spawning_agents
             where agent_id = any (%(agent_ids)s)
               and adopted_by is null and state <> 'closing'
               and workflow_id is not null and workflow_first_run_id is not null
               and spawned_at < now() - %(older_than)s::interval
            """,
            {"agent_ids": list(agent_ids), "older_than": older_than},
        )
        return {agent_id: (workflow_id, first_run_id) for agent_id, workflow_id, first_run_id in rows}

    async def restore_adoption(self, lost: LostAdoption) -> bool:
        """Write the registration and the token again: the agent's next heartbeat is answered as if nothing had been.

        False: its row is gone, closing, or knows another registration. Safe to repeat.
        """
        answer: bool = await self._db.call(
            "hatchway_restore_adoption",
            {
                "agent_id": lost.agent_id,
                "instance_id": lost.instance_id,
                "registration_id": lost.registration_id,
                "token_hash": lost.token_hash,
                "labels": lost.labels,
                "silent_s": seconds(INSTANCE_TIMEOUT),
            },
        )
        return answer

    async def restore(self, lost: LostRow) -> Restored:
        """Write the row again: counted, whatever the caps say. Safe to repeat."""
        answer = await self._db.call(
            "hatchway_restore_row",
            {
                "agent_id": lost.agent_id,
                "scaler": lost.scaler,
                "workflow_id": lost.workflow_id,
                "job_id": lost.job_id,
                "mcpu": lost.mcpu,
                "mem_bytes": lost.mem_bytes,
                "config_version": lost.config_version,
                "host_id": lost.compute.host_id,
                "compute": lost.compute.model_dump(mode="json"),
                "adopted_by": lost.adopted_by,
                "deadline_at": lost.deadline_at.isoformat() if lost.deadline_at else None,
                "spawn": {
                    "workflow_first_run_id": lost.first_run_id,
                    "run_id": lost.run_id,
                    "label_set": lost.label_set,
                    "mandatory_labels": lost.mandatory_labels,
                    "roles": lost.roles,
                    "provisioning_targets": [],
                    "backend_type": lost.backend_type,
                    "reserved_for_s": seconds(lost.adoption_timeout),
                },
            },
            admission=True,
        )
        return Restored(answer)
