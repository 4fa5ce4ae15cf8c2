"""The file of a worker's `--config`: the cluster's first configuration, and read again on SIGHUP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from hatchway.config.current import apply
from hatchway.config.loading import load
from hatchway.config.plan import Plan, carry_out, plan
from hatchway.config.schema import Config
from hatchway.store.config_versions import Applied, ConfigVersionConflict, ConfigVersions
from hatchway.store.rows import Wake

log = structlog.get_logger("hatchway.worker")

Waking = Callable[[Iterable[Wake]], Awaitable[object]]


class ConfigFile:
    """`path` None: the worker was started without a file, and says so when it is asked to read it."""

    def __init__(self, path: Path | None, versions: ConfigVersions, waking: Waking, by: str) -> None:
        self._path = path
        self._versions = versions
        self._waking = waking
        self._by = by

    async def store_first(self) -> None:
        """Apply the file when the cluster has no configuration; otherwise what the cluster has stands.

        Raises ConfigError for a file that is wrong, whether it is needed or not, and StoreUnreachable.
        """
        if self._path is None:
            return
        loaded = load(self._path)
        if await self._versions.current() is not None:
            log.info("the cluster has a configuration already: the file is not applied", file=str(self._path))
            return
        try:
            applied = await apply(
                self._versions,
                loaded,
                source=str(self._path),
                by=self._by,
                note="first configuration",
                expected_version=0,
            )
        except ConfigVersionConflict:
            log.info("another worker has just stored the first configuration: that one stands", file=str(self._path))
            return
        log.info("configuration stored", file=str(self._path), version=applied.version)

    async def reload(self) -> None:
        """Read the file and put it in force over the version that is now. What speaks against it is logged, and then
        nothing has changed: a signal has nobody to answer to, and must not end a worker that serves."""
        if self._path is None:
            log.warning("SIGHUP: this worker was started without --config, so there is no file to read again")
            return
        try:
            planned, applied = await self._apply_over(await asyncio.to_thread(load, self._path), self._path)
        except Exception as e:  # the database may answer anything, and the next signal must be heard
            log.error(
                "SIGHUP: the file is not applied, and nothing has changed",
                file=str(self._path), error=str(e), kind=type(e).__name__,
            )  # fmt: skip
            return
        if planned.same:
            log.info("SIGHUP: the file says what is in force", file=str(self._path), version=planned.base)
            return
        log.info(
            "SIGHUP: configuration applied",
            file=str(self._path),
            version=applied.version,
            changes=planned.difference.lines(),
        )
        try:
            await self._waking(applied.wake)
        except Exception as e:  # Temporal's or the store's: the apply stands, and the next sweep tells who got room
            log.warning("not everybody who got room by it was told; the next sweep tells them", error=str(e))

    async def _apply_over(self, loaded: Config, path: Path) -> tuple[Plan, Applied]:
        planned = await plan(self._versions, loaded)
        try:
            return planned, await carry_out(self._versions, planned, source=str(path), by=self._by, note="SIGHUP")
        except ConfigVersionConflict:
            # Every worker of a cluster may get the signal at once, and bring the same file: then one of them did it.
            again = await plan(self._versions, loaded)
            if not again.same:
                raise
            return again, Applied(again.base, [])


@asynccontextmanager
async def reloading(file: ConfigFile, hangup: asyncio.Event) -> AsyncIterator[None]:
    """Read the file again whenever `hangup` is set; one reload at a time, and the last signal counts."""

    async def serve() -> None:
        while await hangup.wait():
            hangup.clear()
            await file.reload()

    task = asyncio.create_task(serve())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
