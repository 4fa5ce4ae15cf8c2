"""Six bugs that a fleet can be started with. Each is what somebody once shipped; the checker must turn red on each.

Most are put into the worker's own process by its entry script. Two replace a function in the test's database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from hatchway.backends.base import Gone, OwnedCompute
from hatchway.errors import DestroyError
from hatchway.store.pool import Database
from tests.support.admissions import break_the_admission_lock
from tests.support.chaos.cloud_backend import CloudBackend

RELEASES_EARLY_BY_S = 2.0


async def nothing_to_change(_db: Database) -> None:
    """The bug is all in the worker."""


def nothing_to_install() -> None:
    """The bug is all in the database."""


@dataclass(frozen=True)
class Bug:
    """What is wrong, and which invariant must be seen to break."""

    breaks: str
    install: Callable[[], None] = nothing_to_install
    """In a worker's process, before it starts."""
    in_database: Callable[[Database], Awaitable[None]] = nothing_to_change


def _absent_is_an_error() -> None:
    async def destroy(self: CloudBackend, agent_id: str, *_: Any) -> Gone:
        if not await self.remove(agent_id):
            raise DestroyError("the cloud answered 404: there is no such machine")
        return Gone()

    CloudBackend.destroy = destroy  # type: ignore[assignment,method-assign]


def _released_before_gone() -> None:
    left_behind: set[asyncio.Task[None]] = set()

    async def destroy(self: CloudBackend, agent_id: str, *_: Any) -> Gone:
        async def later() -> None:
            await asyncio.sleep(RELEASES_EARLY_BY_S)
            await self.remove(agent_id)

        task = asyncio.create_task(later())
        left_behind.add(task)
        task.add_done_callback(left_behind.discard)
        return Gone()

    CloudBackend.destroy = destroy  # type: ignore[assignment,method-assign]


async def _completions_dropped(db: Database) -> None:
    """The gateway answers the agent well, and nothing is written down: 401 counts as done once a result was sent."""
    await db.fetch_all(
        """
        create or replace function hatchway_complete(args jsonb) returns jsonb
        language plpgsql security definer set search_path = public, pg_temp as
        $$ begin return jsonb_build_object('answer', 'gone'); end $$
        """
    )


async def _lock_skipped(db: Database) -> None:
    await break_the_admission_lock(db, lingering=0.3)


def _nobodys_machines_are_listed() -> None:
    async def owned(self: CloudBackend) -> AsyncIterator[OwnedCompute]:
        for agent_id in await self.everything():
            yield OwnedCompute(agent_id, self.ref(agent_id))

    CloudBackend.owned = owned  # type: ignore[method-assign]


async def _condemned_on_stale_facts(db: Database) -> None:
    """The reaper reads a copy that has not heard anything since the adoption, and the condemnation looks at no facts
    again.
    """
    stale = (
        ("coalesce(p.last_seen_at, s.adopted_at, s.spawned_at)", "s.adopted_at"),
        ("'last_seen_at', p.last_seen_at", "'last_seen_at', s.adopted_at"),
        (
            "'gateway_seen_at', (select i.last_seen_at from scaler_instances i",
            "'gateway_seen_at', (select s.adopted_at",
        ),
        ("where i.instance_id = coalesce(p.instance_id, s.adopted_by)", ""),
    )
    await _rewrite(db, "hatchway_reap_page", stale)
    await _rewrite(db, "hatchway_condemn", (("if s.adopted_by is not null then", "if false then"),))


async def _rewrite(db: Database, function: str, changes: tuple[tuple[str, str], ...]) -> None:
    """Replace texts in a function of the database. A text that is gone from there would leave the bug unseeded."""
    text = str(await db.fetch_value("select pg_get_functiondef(%(name)s::regproc)", {"name": function}))
    for old, new in changes:
        assert old in text, f"{function} does not say {old!r} any more"
        text = text.replace(old, new)
    await db.fetch_all(
        """
        create or replace function rewrite(text) returns void language plpgsql as $$ begin execute $1; end $$
        """
    )
    await db.fetch_all("select rewrite(%(text)s)", {"text": text})


BUGS: dict[str, Bug] = {
    "skip the lock": Bug("I1", in_database=_lock_skipped),
    "404 as error": Bug("I2", _absent_is_an_error),
    "release before gone": Bug("I2", _released_before_gone),
    "drop a completion": Bug("I6", in_database=_completions_dropped),
    "condemn on stale facts": Bug("I4", in_database=_condemned_on_stale_facts),
    "reclaim foreign compute": Bug("I2", _nobodys_machines_are_listed),
}
