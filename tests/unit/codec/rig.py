"""The shape of a fixture."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class WriteKeys(Protocol):
    """Write a file of keys with these ids, in this order, and answer its path.

    The same id is the same key; `id:anything` is another key of that id.
    """

    def __call__(self, *names: str, file: str = "keys") -> Path: ...
