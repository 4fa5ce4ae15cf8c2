"""Whom a token stands for, remembered for agents that have registered.

A heartbeat then costs its share of one batched statement and no look-up. Safe, because agent ids are never used twice
and a registered agent's token lives exactly as long as its row: the batch itself answers whether that still stands.
"""

from __future__ import annotations

from collections import OrderedDict

from hatchway.gateway.errors import unauthorized
from hatchway.store.tokens import TokenRow, Tokens

MAX_REMEMBERED = 20_000


class TokenCache:
    """Look-ups by the token's hash. Raises what the store raises."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._registered: OrderedDict[str, str] = OrderedDict()

    async def row_of(self, token_hash: str) -> TokenRow | None:
        """The token's agent as it stands now, or None."""
        return await self._tokens.lookup(token_hash)

    async def agent_of(self, token_hash: str) -> str | None:
        """The id of the registered agent with this token; None when it has not registered. Raises 401 when unknown."""
        known = self._registered.get(token_hash)
        if known is not None:
            self._registered.move_to_end(token_hash)
            return known
        row = await self.row_of(token_hash)
        if row is None:
            raise unauthorized()
        if row.registration_id is None and not row.closing:
            return None
        self._registered[token_hash] = row.agent_id
        if len(self._registered) > MAX_REMEMBERED:
            self._registered.popitem(last=False)
        return row.agent_id

    def forget(self, token_hash: str) -> None:
        self._registered.pop(token_hash, None)
