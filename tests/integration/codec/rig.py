"""Processes of one namespace that have different payload keys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.client import Client

from hatchway.client import HatchwayClient
from hatchway.codec import VARIABLE
from hatchway.converter import converter_from, data_converter
from hatchway.store.pool import Database
from tests.support.lab import Lab, control_worker
from tests.support.scripted import Cloud, ScriptedBackend
from tests.support.stack import laptop


@dataclass
class Keyed:
    address: str
    namespace: str
    database_url: str
    write: Callable[..., Path]
    """Write a file of keys with these ids; the same id is the same key, `id:anything` another one of that id."""
    exits: AsyncExitStack
    running: list[tuple[Lab, AsyncExitStack]] = field(default_factory=list)
    cloud: Cloud = field(default_factory=Cloud)

    async def client(self, keys: Path | None) -> Client:
        """As a process connects whose HATCHWAY_PAYLOAD_KEYS names this file."""
        converter = converter_from({VARIABLE: str(keys)}) if keys else data_converter
        return await Client.connect(self.address, namespace=self.namespace, data_converter=converter)

    async def caller(self, keys: Path | None) -> HatchwayClient:
        return HatchwayClient(await self.client(keys))

    async def worker(self, keys: Path | None, *, control: bool = True, host: bool = True) -> Lab:
        """A control worker and a host, or one of the two, which end with the test or with `stop`."""
        exits = AsyncExitStack()
        self.exits.push_async_exit(exits)
        db = await exits.enter_async_context(Database.open(self.database_url))
        lab = await Lab.on(await self.client(keys), db, ScriptedBackend(self.cloud, host=f"host-{len(self.running)}"))
        if not self.running:
            await lab.apply(laptop())
        self.running.append((lab, exits))
        if control:
            await exits.enter_async_context(control_worker(lab))
        if host:
            lab.start_host(lab.backend)
            exits.push_async_callback(lab.stop_host, lab.backend.host_id)
        return lab

    async def stop(self, lab: Lab) -> None:
        """It polls no more."""
        await next(exits for one, exits in self.running if one is lab).aclose()
