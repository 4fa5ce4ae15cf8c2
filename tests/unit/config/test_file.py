"""A worker's configuration file, read again on SIGHUP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import cast

import psycopg
import pytest

from hatchway.config.file import ConfigFile, reloading
from hatchway.errors import StoreUnreachable
from hatchway.store.config_versions import ConfigVersions
from hatchway.store.rows import Wake
from tests.support.namespaces import until

FILE = """
version: 1
scalers:
  - {name: laptop, type: bare-metal, maxAgents: 1, labelSets: [{labels: [linux], user: nobody}]}
"""


class Refusing:
    """Stands for the stored versions: every look at them fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.looks = 0

    async def current(self) -> None:
        self.looks += 1
        raise self._error

    def looked(self, times: int) -> bool:
        return self.looks == times


@pytest.mark.parametrize(
    "error", [StoreUnreachable("away"), psycopg.errors.InsufficientPrivilege("no"), psycopg.errors.UndefinedTable("no")]
)
async def test_a_reload_that_the_database_refuses_ends_no_worker_and_the_next_signal_counts(
    tmp_path: Path, error: Exception
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(FILE)
    stored, hangup = Refusing(error), asyncio.Event()

    async def nobody(_: Iterable[Wake]) -> None:
        return

    async with reloading(ConfigFile(path, cast("ConfigVersions", stored), nobody, by="test"), hangup):
        for looks in (1, 2):
            hangup.set()
            await until(partial(stored.looked, looks), patience=10)
