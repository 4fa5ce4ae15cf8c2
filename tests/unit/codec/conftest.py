"""Files of payload keys."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from tests.unit.codec.rig import WriteKeys


def key_of(name: str) -> str:
    """The same key for the same name, in base64; `id:anything` is another key of that id."""
    return base64.b64encode(hashlib.sha256(name.encode()).digest()).decode()


@pytest.fixture
def write_keys(tmp_path: Path) -> WriteKeys:
    def write(*names: str, file: str = "keys") -> Path:
        path = tmp_path / file
        lines = [
            name if name in ("none", "") or name.startswith("#") else f"{name.partition(':')[0]} {key_of(name)}"
            for name in names
        ]
        path.touch(mode=0o600)
        path.write_text("\n".join(lines) + "\n")
        return path

    return write
