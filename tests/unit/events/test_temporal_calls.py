"""What customers' servers and workflows say reaches people's eyes: without the key that they were asked with."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import cast

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError, TerminatedError
from temporalio.service import RPCError, RPCStatusCode

from hatchway.backends.event_targets import TemporalTarget
from hatchway.backends.event_temporal_calls import MOST_WORDS, Place, reported, words_of
from hatchway.errors import SpawnError
from hatchway.secrets.secret import Secret

KEY = "key-0123456789abcdef-0123456789abcdef"
PLACE = Place(TemporalTarget("customer", "queue", "ScaleUp"), cast(Client, None), Secret(KEY))
SAID = {
    "whole": f"the key {KEY} has ended",
    "at the cut": "x" * (MOST_WORDS - 10) + KEY,
    "twice, in lines": f"{KEY}\n{KEY}",
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
@pytest.mark.parametrize(
    "status", [RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.INVALID_ARGUMENT]
)
async def test_a_server_that_quotes_the_key_is_not_quoted_with_it(said: str, status: RPCStatusCode) -> None:
    async def refuse() -> None:
        raise RPCError(said, status, b"")

    with pytest.raises(SpawnError, match="refused") as raised:
        await reported(PLACE, cast("Awaitable[None]", refuse()))

    assert KEY[:10] not in str(raised.value)


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
@pytest.mark.parametrize("kind", [ApplicationError, TerminatedError])
def test_nor_is_a_workflow_that_does(said: str, kind: type[ApplicationError | TerminatedError]) -> None:
    words = words_of(PLACE, WorkflowFailureError(cause=kind(said)))

    assert words.startswith(("failed: ", "was terminated: "))
    assert KEY[:10] not in words


def test_a_place_shows_no_key() -> None:
    assert KEY not in repr(PLACE)
