"""The shape of a fixture."""

from __future__ import annotations

from typing import Protocol


class MakeHelper(Protocol):
    """Put `docker-credential-NAME`, a shell script, on a PATH, and answer that PATH. `answer`: user and secret."""

    def __call__(self, name: str, script: str, *, answer: tuple[str, str] | None = None) -> str: ...
