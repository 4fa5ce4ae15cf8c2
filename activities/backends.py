"""Which backend of a host has an agent's compute."""

from __future__ import annotations

from collections.abc import Mapping

from temporalio.exceptions import ApplicationError

from hatchway.backends.base import Backend


class Backends:
    """Those that this worker reaches on one host, by their kind."""

    def __init__(self, host_id: str, by_kind: Mapping[str, Backend]) -> None:
        self._host_id = host_id
        self._by_kind = by_kind

    def of(self, kind: str | None) -> Backend:
        """Workers of one host may reach different backends: one that lacks this kind leaves it to the others.

        Raises ApplicationError, to be tried again.
        """
        backend = self._by_kind.get(kind or "")
        if backend is None:
            raise ApplicationError(f"this worker of host {self._host_id} has no {kind} backend", type="WrongWorker")
        return backend
