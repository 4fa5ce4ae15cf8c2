"""What a loop that never ends meets again and again: said once for each, and by whom it is to be mended."""

from __future__ import annotations

from typing import Protocol

from temporalio.service import RPCError

from hatchway.errors import HatchwayError


class _Log(Protocol):
    def warning(self, event: str, **fields: str) -> object: ...
    def error(self, event: str, **fields: str) -> object: ...


class Trouble:
    """One loop's. An outage is a warning and goes by itself; anything else is an error, with its type: somebody has
    to mend the database's setup, or this code. Neither ends the loop: what else its process serves must go on."""

    def __init__(self, log: _Log, what: str) -> None:
        self._log = log
        self._what = what
        self._said: str | None = None

    def met(self, e: Exception) -> str:
        """Say it, unless it was said last. Its words, on one line."""
        words = " ".join(str(e).split()) or type(e).__name__
        if words != self._said:
            if isinstance(e, HatchwayError | RPCError):
                self._log.warning(self._what, error=words)
            else:
                self._log.error(self._what, error=words, kind=type(e).__name__)
        self._said = words
        return words

    def over(self) -> None:
        self._said = None
