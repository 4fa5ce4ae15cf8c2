"""Agents as processes of this host, each under a supervisor of its own (`hatchway.host.shim`).

All evidence is on disk under the state directory (`hatchway.host.records`), none in the worker: a worker that was
killed at any point, or another one on the same host, finds everything again. The record's lock is the referee: it is
held from before the agent's supervisor exists until nothing of the agent is left, so a pid only says whom to signal.

The supervisors must outlive the worker. Under systemd that needs `KillMode=process` in the worker's unit.
CPU and memory limits are those of a control group (`hatchway.host.cgroups`); agents under one user can still signal
each other.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

import structlog

from hatchway.backends.bare_metal_launch import Launcher
from hatchway.backends.base import Gone, OwnedCompute, Progress, SpawnSpec
from hatchway.backends.errors import log_tail, plain
from hatchway.config.schema import ScalerType
from hatchway.errors import DestroyError, HatchwayError
from hatchway.host.cgroups import Cgroups
from hatchway.host.ending import EndedAgents, Ending
from hatchway.host.identity import boot_id
from hatchway.host.records import Intent, RecordDamagedError, Records, Started
from hatchway.model import ComputeExit, ComputeRef, ScaleDownReason, TeardownFacts
from hatchway.through_cancel import to_its_end

POLL = 0.2  # seconds between two looks for agents that have ended
HARD_AFTER = 3.0  # seconds past the grace after which the shim is taken for stuck and bypassed
GIVE_UP_AFTER = 10.0  # seconds past the grace after which this round of a teardown has failed
TAIL_READ = 64 * 1024  # bytes; far more than fifty lines need
OPERATOR_READ = 1024 * 1024  # bytes

log = structlog.get_logger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


class BareMetalBackend:
    """The one backend of a host, for all its bare-metal scalers. Linux only."""

    def __init__(self, host_id: str, state_dir: Path, installation_id: str, cgroups: Cgroups | None = None) -> None:
        """Makes `state_dir` (passable, not listable) if it is missing. Raises HatchwayError where that cannot be."""
        self._host_id = host_id
        self._records = Records(state_dir.absolute(), installation_id)
        self._threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="bare-metal")
        try:
            self._boot_id = boot_id()
            self._records.make_state_dir()
        except OSError as e:
            raise HatchwayError(
                f"bare-metal agents need Linux with /proc and a state directory that this worker can write: {e}"
            ) from e
        self._cgroups = cgroups or Cgroups(installation_id)
        self._ending = Ending(self._records, self._boot_id, self._cgroups)
        self._launcher = Launcher(self._records, self._ending, self._boot_id, self._cgroups)

    @property
    def host_id(self) -> str:
        return self._host_id

    async def spawn(self, spec: SpawnSpec, progress: Progress) -> ComputeRef:
        """Start the agent's process, or find it: also one that has already ended, which `exits` reports."""
        progress("starting the agent's process")
        return self._ref(await to_its_end(self._in_thread(self._launcher.start, spec)))

    async def destroy(self, agent_id: str, facts: TeardownFacts, reason: ScaleDownReason) -> Gone:
        """SIGTERM to the agent's group, the grace in its record, SIGKILL to its whole tree; then forget the record."""
        try:
            intent = await self._in_thread(self._intent_of_ours, agent_id)
            grace = intent.stop_grace.total_seconds() if intent is not None else 0.0
            gone = await self._stop(agent_id, grace)
        except (OSError, RecordDamagedError) as e:
            raise DestroyError(f"agent {agent_id} on host {self._host_id} cannot be confirmed gone: {e}") from e
        if not gone:
            raise DestroyError(
                f"agent {agent_id} on host {self._host_id} still runs {GIVE_UP_AFTER:.0f} s after its grace: look "
                f"there for a process in uninterruptible sleep; its pids are in {self._records.state_dir / agent_id}"
            )
        return Gone()

    async def _stop(self, agent_id: str, grace: float) -> bool:
        """Signal the shim and wait until nothing is left. False if that takes too long."""
        begun = time.monotonic()
        asked, pause = False, 0.01
        while not await self._in_thread(self._ending.remove_if_over, agent_id):
            late = time.monotonic() - begun - grace
            if late > GIVE_UP_AFTER:
                return False
            if late > HARD_AFTER:
                await self._in_thread(self._ending.kill, agent_id)
            elif not asked:
                asked = await self._in_thread(self._ending.signal_shim, agent_id, signal.SIGTERM)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, POLL)
        return True

    async def find(self, agent_id: str) -> ComputeRef | None:
        """The agent's process of this boot, running or ended, until it is destroyed."""
        return await self._in_thread(self._find, agent_id)

    def _find(self, agent_id: str) -> ComputeRef | None:
        if self._intent_of_ours(agent_id) is None:
            return None
        started = self._records.started(agent_id)
        return self._ref(started) if started is not None and started.boot_id == self._boot_id else None

    async def exits(self) -> AsyncIterator[ComputeExit]:
        """Each agent that has ended, once per iterator, until `destroy` takes its record away.

        Those that a teardown ended are told too: between its signal and the record's end they look the same.
        """
        ends = EndedAgents(self._records, self._boot_id)
        while True:
            for agent_id, ended in await self._in_thread(ends.look):
                text = await self._in_thread(self._records.log_end, agent_id, TAIL_READ)
                yield ComputeExit(agent_id=agent_id, exit_code=ended.exit_code, log_tail=log_tail(text))
            await asyncio.sleep(POLL)

    async def owned(self) -> AsyncIterator[OwnedCompute]:
        """Every record of this installation, also of an agent that was never started or has ended."""
        left = await self._in_thread(self._records.clear_removed)
        if left:
            log.warning("files of destroyed agents cannot be deleted", paths=[str(path) for path in left])
        await self._in_thread(self._cgroups.remove_left_over, self._records.knows)
        for owned in await self._in_thread(self._owned):
            yield owned

    def _owned(self) -> list[OwnedCompute]:
        found = []
        for agent_id in self._records.agent_ids():
            try:
                intent, started = self._intent_of_ours(agent_id), self._records.started(agent_id)
            except RecordDamagedError as e:
                log.error("a damaged record", agent_id=agent_id, error=str(e))
                continue
            if intent is not None:
                found.append(OwnedCompute(agent_id, self._ref(started), intent.created_at))
        return found

    async def logs(self, agent_id: str, lines: int = 200) -> str:
        """The last lines of the agent's output, secrets masked and without control characters."""
        if await self._in_thread(self._intent_of_ours, agent_id) is None:
            return ""
        text = plain(await self._in_thread(self._records.log_end, agent_id, OPERATOR_READ))
        return "\n".join(text.rstrip().split("\n")[-lines:])

    async def close(self) -> None:
        """Let the threads go. Every agent stays."""
        self._threads.shutdown(wait=False)

    def _intent_of_ours(self, agent_id: str) -> Intent | None:
        return self._records.intent(agent_id) if self._records.is_ours(agent_id) else None

    def _ref(self, started: Started | None) -> ComputeRef:
        """`ref` is the pid, for people: whoever acts on an agent reads the record."""
        pid = str(started.agent.pid) if started is not None else "not started"
        return ComputeRef(backend=ScalerType.BARE_METAL, ref=pid, host_id=self._host_id)

    def _in_thread(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
        call = functools.partial(function, *args, **kwargs)
        return asyncio.get_running_loop().run_in_executor(self._threads, call)
