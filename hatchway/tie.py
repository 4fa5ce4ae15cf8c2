"""Whether the database and the Temporal namespace that are spoken to belong together.

A copy of a database knows the original's agents, and bears the original's installation id. In another namespace none of
their workflows is to be found, so everything that judges by "its workflow is gone" would tear the original's agents
down. `hatchway setup` ties a database to the namespace's own UUID; whoever finds another one there keeps its hands off.
"""

from __future__ import annotations

from enum import StrEnum

from temporalio.client import Client

from hatchway.errors import HatchwayError
from hatchway.namespace import namespace_uuid
from hatchway.store.installation import Installation, installation
from hatchway.store.pool import Database


class Tie(StrEnum):
    HERE = "here"
    NONE_YET = "none yet"
    ELSEWHERE = "elsewhere"
    RENEWED = "renewed"
    """Another installation than the one that this process was started for: it was a copy, and became its own."""


class TiedElsewhere(HatchwayError):
    """This database is not that of the namespace that is spoken to: nothing may be ended from here. Says what to do."""


class NamespaceTie:
    """Asked anew each time: `hatchway setup` may change it while a worker runs."""

    def __init__(self, db: Database, temporal: Client) -> None:
        self._db = db
        self._temporal = temporal

    async def look(self, installation_id: str | None = None) -> Tie:
        """What the database says now. `installation_id`: whose compute the asking process has in hand.

        Raises StoreUnreachable, StoreContended or RPCError when one of the two does not answer.
        """
        known = await installation(self._db)
        if installation_id is not None and str(known.installation_id) != installation_id:
            return Tie.RENEWED
        if known.namespace_uuid is None:
            return Tie.NONE_YET
        here = await namespace_uuid(self._temporal)
        return Tie.HERE if known.namespace_uuid == here else Tie.ELSEWHERE

    async def refuse_elsewhere(self, installation_id: str) -> Tie:
        """Raise TiedElsewhere where nothing may be done; else what was found, which may be no tie yet."""
        tie = await self.look(installation_id)
        if tie in (Tie.ELSEWHERE, Tie.RENEWED):
            raise TiedElsewhere(self.words(tie))
        return tie

    def words(self, tie: Tie) -> str:
        """What an operator has to know of it, with the commands."""
        match tie:
            case Tie.HERE:
                return f"this database belongs to namespace {self._temporal.namespace}"
            case Tie.NONE_YET:
                return "this database is not tied to a namespace yet: run `hatchway setup`"
            case Tie.RENEWED:
                return "this database has become another installation than this process was started for: start it again"
            case Tie.ELSEWHERE:
                return (
                    f"this database belongs to another Temporal namespace than {self._temporal.namespace}: nothing is "
                    f"done here, or agents of the original could be torn down. {WAYS_OUT}"
                )


WAYS_OUT = (
    "Give each namespace a database of its own; or, if this database has moved here for good, run `hatchway setup "
    "--retie`; or, if it is a copy whose original goes on, `hatchway setup --as-copy`, and start the workers again."
)


def other_namespace(known: Installation, namespace: str, uuid: str) -> str:
    """The sentence for whoever would have tied it."""
    return f"this database belongs to Temporal namespace {known.namespace_uuid}, and {namespace} is {uuid}. {WAYS_OUT}"
