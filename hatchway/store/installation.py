"""Which installation this database is, and which Temporal namespace it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from hatchway.store.adoption import INSTANCE_TIMEOUT
from hatchway.store.pool import Database

FORGOTTEN_AT_ONCE = 1000
"""Agents whose rows one statement deletes: some 50 ms, far below the limit of a call."""


@dataclass(frozen=True, slots=True)
class Installation:
    installation_id: UUID
    created_at: datetime
    namespace_uuid: str | None
    """None: not tied yet (`hatchway setup` does it)."""
    tied_at: datetime | None


async def installation(db: Database) -> Installation:
    row = await db.fetch_one("select installation_id, created_at, namespace_uuid, tied_at from hatchway_installation")
    if row is None:
        raise LookupError("hatchway_installation is empty: its row is made by `hatchway db migrate`, and never deleted")
    return Installation(*row)


async def installation_id(db: Database) -> str:
    """What every compute of this installation bears. Made by the first migrate; only a copy gets one of its own."""
    return str((await installation(db)).installation_id)


async def tied_namespace(db: Database) -> str | None:
    """The namespace's id alone, None where there is no tie yet. For the gateway, whose role may read no table."""
    found: str | None = await db.fetch_value("select public.hatchway_tied_namespace()")
    return found


async def tie_namespace(db: Database, uuid: str) -> Installation:
    """Tie the database to a Temporal namespace, unless it is tied already.

    Compare `namespace_uuid` of the answer: another one than `uuid` means that this is a copy, which must not reap.
    """
    await db.fetch_all(
        """
        update hatchway_installation
           set namespace_uuid = %(uuid)s, tied_at = now()
         where namespace_uuid is null
        """,
        {"uuid": uuid},
    )
    return await installation(db)


async def living_worker(db: Database) -> str | None:
    """A worker that has been heard of within the instance timeout: somebody uses this database."""
    found: str | None = await db.fetch_value(
        """
        select instance_id
          from scaler_instances
         where kind = 'worker' and last_seen_at > now() - %(silent)s::interval
         order by last_seen_at desc
         limit 1
        """,
        {"silent": INSTANCE_TIMEOUT},
    )
    return found


async def retie_namespace(db: Database, uuid: str) -> Installation:
    """The database has moved to this namespace for good. Its installation id stays, and with it its agents."""
    await db.fetch_all("update hatchway_installation set namespace_uuid = %(uuid)s, tied_at = now()", {"uuid": uuid})
    return await installation(db)


async def become_another(db: Database, uuid: str, batch: int = FORGOTTEN_AT_ONCE) -> Installation:
    """Make a copy an installation of its own, tied to this namespace: with a new id, and without the original's agents,
    which it can then neither find nor end. A copy that is tied there already is left as it is.

    The agents are forgotten a batch at a time, and the tie is written last: whatever ends this half way, the copy still
    belongs to the original's namespace, nothing works with it, and the next call goes on. Raises StoreContended and
    StoreUnreachable, to be called again.
    """
    while await db.call("hatchway_forget_original", {"namespace_uuid": uuid, "batch": batch}, admission=True):
        continue
    await db.call("hatchway_become_another", {"namespace_uuid": uuid}, admission=True)
    return await installation(db)
