"""The plans of every statement that a call runs, those inside its functions and triggers too: auto_explain tells."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from hatchway.store.pool import Database

# To this client as notices, so that no server's log has to be read.
_SETTINGS = (
    "load 'auto_explain'",
    "set auto_explain.log_min_duration = 0",
    "set auto_explain.log_nested_statements = on",
    "set auto_explain.log_format = json",
    "set auto_explain.log_level = notice",
)


@dataclass
class Plans:
    """What ran since the last `clear`."""

    statements: list[dict[str, Any]] = field(default_factory=list)
    """Each with its "Query Text" and its "Plan"."""

    def clear(self) -> None:
        self.statements.clear()

    def heard(self, notice: psycopg.errors.Diagnostic) -> None:
        _, plan, text = (notice.message_primary or "").partition("plan:\n")
        if plan:
            self.statements.append(json.loads(text))

    def scanned(self) -> set[tuple[str, str]]:
        """(table, statement) for every sequential scan."""
        return {
            (str(node["Relation Name"]), " ".join(str(statement["Query Text"]).split()))
            for statement in self.statements
            for node in _nodes(statement["Plan"])
            if node["Node Type"] == "Seq Scan"
        }


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


@asynccontextmanager
async def explaining(dsn: str) -> AsyncIterator[tuple[Database, Plans]]:
    """One connection, which explains whatever it runs. Its user is a superuser."""
    plans = Plans()

    async def configure(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
        for setting in _SETTINGS:
            await connection.execute(setting)
        connection.add_notice_handler(plans.heard)

    pool: AsyncConnectionPool[psycopg.AsyncConnection[tuple[Any, ...]]] = AsyncConnectionPool(
        dsn,
        min_size=1,
        max_size=1,
        kwargs={"autocommit": True, "prepare_threshold": None},
        configure=configure,
        open=False,
    )
    async with pool:
        yield Database(pool), plans
