"""Whether this gateway's database is the one of the Temporal namespace that it speaks to.

To the database of another installation every agent is unknown, and to another namespace every provision has ended. An
agent believes its gateway and stops, its job with it. So whatever would end an agent is said only by a gateway that
has just seen that the two belong together (`hatchway.tie`); any other one answers 503, and the agent asks again.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import structlog
from temporalio.client import Client
from temporalio.service import RPCError

from hatchway.errors import StoreContended, StoreUnreachable
from hatchway.gateway.errors import ApiError, TemporalUnreachable, unavailable
from hatchway.gateway.health import NotReady
from hatchway.gateway.patience import Patience
from hatchway.namespace import namespace_uuid
from hatchway.store.installation import tied_namespace
from hatchway.store.pool import Database
from hatchway.tie import NamespaceTie, Tie, TiedElsewhere

_BRIEFLY = {
    Tie.ELSEWHERE: "this gateway's database belongs to another Temporal namespace, and its log says what to do",
    Tie.NONE_YET: "this gateway's database is not tied to a Temporal namespace yet: run `hatchway setup`",
}
"""For whoever calls, without names: that may be anybody."""

log = structlog.get_logger(__name__)


class Belonging:
    """`patience` bounds each of the two questions."""

    def __init__(self, db: Database, temporal: Client, patience: timedelta) -> None:
        self._db = db
        self._temporal = temporal
        self._limit_s = patience.total_seconds()
        self._patience = Patience(patience)
        self._words = NamespaceTie(db, temporal).words
        self._here: str | None = None
        """The namespace's id, as Temporal last told it."""
        self._said: Tie | None = None
        """What the last look saw."""

    async def look(self, *, afresh: bool = True) -> Tie:
        """What both say now. Unless `afresh`, Temporal is asked only where its last word does not fit the database's.

        Raises StoreUnreachable, StoreContended or TemporalUnreachable.
        """
        tied = await self._patience(tied_namespace(self._db))
        if tied is None:
            return self._see(Tie.NONE_YET)
        if afresh or self._here != tied:
            self._here = await self._ask_temporal()
        return self._see(Tie.HERE if self._here == tied else Tie.ELSEWHERE)

    async def refuse_elsewhere(self) -> None:
        """Raise TiedElsewhere before anything is served. A server that does not answer refuses nothing: it comes back,
        and until then no agent is sent away.
        """
        try:
            tie = await self.look()
        except (StoreUnreachable, StoreContended, TemporalUnreachable) as e:
            log.warning("gateway_tie_not_known_yet", reason=str(e))
            return
        if tie is Tie.ELSEWHERE:
            raise TiedElsewhere(f"this gateway serves nobody: {self._words(tie)}")

    async def watch(self, every: timedelta) -> None:
        """Look again and again, until cancelled. What a server that is away would say is left for the next look."""
        while True:
            await asyncio.sleep(every.total_seconds())
            try:
                await self.look()
            except (StoreUnreachable, StoreContended, TemporalUnreachable) as e:
                log.debug("gateway_tie_not_seen", reason=str(e))

    @property
    def elsewhere(self) -> bool:
        """The last look saw the database of another namespace: nothing may be done with it."""
        return self._said is Tie.ELSEWHERE

    async def refuse_calls_elsewhere(self) -> None:
        """Before each call: 503 as long as this is the database of another namespace."""
        if self.elsewhere:
            raise _cannot_say(Tie.ELSEWHERE)

    def facts(self) -> dict[str, str]:
        """For /readyz. Raises NotReady."""
        if self.elsewhere:
            raise NotReady(_BRIEFLY[Tie.ELSEWHERE])
        return {}

    async def vouch(self, *, unknown: bool, afresh: bool = False) -> None:
        """Return where an agent may be told that it has ended. Raises 503 where this may be the wrong place to say so.

        `unknown`: it would be told so because nothing is known of it, and a database that is not tied to any namespace
        yet may simply be the wrong one. Where a row says it, the agent is this database's.
        """
        try:
            tie = await self.look(afresh=afresh)
        except (StoreUnreachable, StoreContended) as e:
            raise unavailable("Postgres") from e
        except TemporalUnreachable as e:
            raise unavailable("Temporal") from e
        if tie is Tie.ELSEWHERE or (unknown and tie is Tie.NONE_YET):
            raise _cannot_say(tie)

    async def _ask_temporal(self) -> str:
        try:
            async with asyncio.timeout(self._limit_s):
                return await namespace_uuid(self._temporal)
        except (RPCError, TimeoutError) as e:
            raise TemporalUnreachable(f"Temporal did not say which namespace this is: {type(e).__name__} {e}") from e

    def _see(self, tie: Tie) -> Tie:
        if tie is not self._said and (tie is not Tie.HERE or self._said is not None):
            say = log.info if tie is Tie.HERE else log.warning if tie is Tie.NONE_YET else log.error
            say("gateway_tie", tie=tie.value, meaning=self._words(tie))
        self._said = tie
        return tie


def _cannot_say(tie: Tie) -> ApiError:
    refused = unavailable("the right gateway")
    return ApiError(refused.status, refused.error, f"{_BRIEFLY[tie]}; the call may be repeated", refused.headers)
