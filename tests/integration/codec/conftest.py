"""Workflows on the real Temporal, with the payload keys that a test wants at each end."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.integration.codec.rig import Keyed
from tests.support.namespaces import Namespaces
from tests.support.temporal_fixtures import TemporalServer


@pytest.fixture
async def keyed(
    tmp_path: Path, temporal: TemporalServer, namespaces: Namespaces, database_url: str
) -> AsyncIterator[Keyed]:
    def write(file: str, *names: str) -> Path:
        path = tmp_path / file
        path.touch(mode=0o600)
        keys = {name: base64.b64encode(hashlib.sha256(name.encode()).digest()).decode() for name in names}
        path.write_text(
            "".join("none\n" if name == "none" else f"{name.partition(':')[0]} {key}\n" for name, key in keys.items())
        )
        return path

    namespace = (await namespaces.take()).namespace
    async with AsyncExitStack() as exits:
        yield Keyed(temporal.address, namespace, database_url, write, exits)
