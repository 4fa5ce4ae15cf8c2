"""Agents' tokens: whom a bearer token stands for."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.types.json import Jsonb

from hatchway.store.pool import Database
from hatchway.store.rows import SpawnState


@dataclass(frozen=True, slots=True)
class TokenRow:
    """The agent of a valid token, and what it needs to know of its row."""

    agent_id: str
    workflow_id: str | None
    first_run_id: str | None
    scaler: str
    labels: list[str]
    state: SpawnState
    end_reason: str | None
    registration_id: str | None
    adopted_by: str | None
    job_id: str | None
    run_id: str | None

    @property
    def closing(self) -> bool:
        """The token outlives the close, so that the agent can be told 410 instead of 401."""
        return self.state is SpawnState.CLOSING


class Tokens:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def lookup(self, token_hash: str) -> TokenRow | None:
        """None: no such token, its row is gone, or it expired before its agent registered."""
        answer = await self._db.fetch_value(
            "select public.hatchway_token(%(arguments)s)", {"arguments": Jsonb({"token_hash": token_hash})}
        )
        if answer is None:
            return None
        return TokenRow(
            agent_id=answer["agent_id"],
            workflow_id=answer["workflow_id"],
            first_run_id=answer["workflow_first_run_id"],
            scaler=answer["scaler"],
            labels=answer["labels"],
            state=SpawnState(answer["state"]),
            end_reason=answer["end_reason"],
            registration_id=answer["registration_id"],
            adopted_by=answer["adopted_by"],
            job_id=answer["job_id"],
            run_id=answer["run_id"],
        )
