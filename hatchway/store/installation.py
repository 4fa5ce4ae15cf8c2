"""Which installation this database is, and which Temporal namespace it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from hatchway.store.pool import Database


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
    """What every compute of this installation bears. Made by the first migrate, never changed."""
    return str((await installation(db)).installation_id)


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
