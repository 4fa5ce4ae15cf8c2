"""Starting one bare-metal agent: exactly one, whoever tries how often, and what each refusal means."""

from __future__ import annotations

import errno
import json
import os
import select
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import structlog

from hatchway.backends.bare_metal_order import Account, account_of, order_of
from hatchway.backends.base import SpawnSpec
from hatchway.backends.errors import spawn_error_of
from hatchway.errors import PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from hatchway.host import shim
from hatchway.host.cgroups import Cgroups, CgroupsUnusable, Entrance, Limits
from hatchway.host.ending import Ending
from hatchway.host.processes import AnotherUsersError
from hatchway.host.records import Intent, Lock, RecordDamagedError, Records, Started

SETTLE = 30.0  # seconds to wait for another worker that is in the middle of a spawn or teardown of the same agent
ANSWER_TIMEOUT = 20.0  # seconds; a start takes about 0.1 s, so this is a machine that hardly moves
CLEAN_UP = 5.0  # seconds

log = structlog.get_logger(__name__)


class UnsettledStartError(TransientSpawnError):
    """The shim did not answer in time, and may yet start the agent."""


class Launcher:
    """Starts agents on this host. Blocking: call it from a thread."""

    def __init__(self, records: Records, ending: Ending, boot_id: str, cgroups: Cgroups) -> None:
        self._records = records
        self._ending = ending
        self._boot_id = boot_id
        self._cgroups = cgroups

    def start(self, spec: SpawnSpec) -> Started:
        """Start the agent, or find what an earlier attempt started. A SpawnError leaves nothing behind, except of what
        may yet start, and of another user's.
        """
        account = account_of(spec.label_set, spec.agent_id)
        try:
            found = self._lock_or_find(spec)
        except (ValueError, RecordDamagedError) as e:
            raise PermanentSpawnError(SpawnCode.INVALID_SPEC, str(e)) from None
        except AnotherUsersError as e:  # its agent may be at work, and says so by registering
            raise TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, str(e)) from None
        except OSError as e:
            raise spawn_error_of(e, "making the agent's record") from e
        if isinstance(found, Started):
            return found
        try:
            return self._launch(spec, account, found)
        except UnsettledStartError:
            log.warning(
                "a start is still on its way: the next attempt or the teardown finds it", agent_id=spec.agent_id
            )
            raise
        except OSError as e:
            self._clean_up(spec.agent_id)
            raise spawn_error_of(e, "starting the agent's process") from e
        except SpawnError:
            self._clean_up(spec.agent_id)
            raise
        finally:
            found.close()

    def _clean_up(self, agent_id: str) -> None:
        """Leave nothing of a failed start. Under the lock that it had: whatever is found here is this start's own."""
        until = time.monotonic() + CLEAN_UP
        while self._ending.kill_survivors(agent_id):
            if time.monotonic() > until:
                log.warning("a failed start is still there: the teardown finds it", agent_id=agent_id)
                return
            time.sleep(0.005)
        self._ending.forget(agent_id)

    def _lock_or_find(self, spec: SpawnSpec) -> Lock | Started:
        """The record's lock with nothing started under it, or what an earlier attempt started.

        What that was is written again where somebody has deleted it: the agent may be at work.
        """
        agent_id, until = spec.agent_id, time.monotonic() + SETTLE
        while True:
            self._prepare(agent_id)
            try:
                lock = self._records.try_lock(agent_id)
            except FileNotFoundError:
                continue  # a teardown took the record away between the two lines
            try:
                started, foreign = self._records.started(agent_id), not self._records.is_ours(agent_id)
                if not foreign:
                    started = self._written_again(spec, started)
                    if lock is not None and started is None and self._nothing_runs(agent_id):
                        taken, lock = lock, None
                        return taken
            except FileNotFoundError:
                continue  # the same, while what had been deleted was written again
            finally:
                if lock is not None:
                    lock.close()
            if foreign:
                raise ValueError(
                    f"{self._records.path(agent_id)} belongs to another installation: give each its own state directory"
                )
            if started is not None:
                return started
            if time.monotonic() > until:
                raise TransientSpawnError(
                    SpawnCode.CAPACITY, f"another worker of this host has been starting {agent_id} for {SETTLE:.0f} s"
                )
            time.sleep(0.02)

    def _written_again(self, spec: SpawnSpec, started: Started | None) -> Started | None:
        """What was started, with its record whole; None where nothing is known to run."""
        agent_id = spec.agent_id
        found = started or self._ending.running_unrecorded(agent_id)
        if found is None:
            return None
        if started is None or self._records.intent(agent_id) is None:
            log.warning("an agent's record was written again: who deletes files below the state directory?",
                        agent_id=agent_id)  # fmt: skip
        if self._records.intent(agent_id) is None:
            self._records.write_intent(self._intent(spec))
        if started is None:
            self._records.write_started(agent_id, found)
        return found

    def _nothing_runs(self, agent_id: str) -> bool:
        """False where leftovers of an earlier attempt did, which have been killed. Only for the holder of the lock."""
        grouped, marked = self._ending.kill_survivors(agent_id), self._ending.kill_unrecorded(agent_id)
        return not (grouped or marked)

    def _prepare(self, agent_id: str) -> None:
        try:
            self._records.prepare(agent_id)
        except (FileNotFoundError, NotADirectoryError):
            raise TransientSpawnError(
                SpawnCode.DAEMON_UNAVAILABLE,
                f"the state directory {self._records.state_dir} is missing on this host: is its disk mounted?",
            ) from None

    def _launch(self, spec: SpawnSpec, account: Account | None, lock: Lock) -> Started:
        self._records.write_intent(self._intent(spec))
        directory = self._records.path(spec.agent_id)
        order = order_of(spec, account, directory, self._boot_id, self._entrance(spec))
        start_shim(spec.agent_id, directory, lock.fd, order)
        started = self._records.started(spec.agent_id)
        if started is None:
            raise TransientSpawnError(
                SpawnCode.CAPACITY, f"the record of {spec.agent_id} vanished while it was started"
            )
        return started

    def _intent(self, spec: SpawnSpec) -> Intent:
        return Intent(
            agent_id=spec.agent_id,
            installation_id=self._records.installation_id,
            scaler=spec.scaler.name,
            boot_id=self._boot_id,
            created_at=datetime.now(UTC),
            stop_grace=spec.stop_grace,
            cgroups=self._cgroups.places(spec.agent_id) if spec.scaler.enforce_cgroups else (),
        )

    def _entrance(self, spec: SpawnSpec) -> Entrance | None:
        """The agent's control group, made with its limits; None where none is wanted, or had and needed."""
        if not spec.scaler.enforce_cgroups:
            return None
        try:
            return self._cgroups.make(spec.agent_id, Limits(spec.mcpu, spec.mem_bytes))
        except CgroupsUnusable as e:
            raise PermanentSpawnError(SpawnCode.DAEMON_UNAVAILABLE, str(e)) from None


def start_shim(agent_id: str, directory: Path, lock: int, order: dict[str, Any]) -> None:
    """Start the shim, hand it lock and order, and wait until it has started the agent. Raises SpawnError, OSError.

    The shim forks away from the process started here, so there is no child to wait for later and none to leave behind.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", shim.__file__, agent_id, str(directory), str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock,),
        start_new_session=True,
        cwd="/",
        env={},
    )
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes, see above
    with process.stdout:
        try:
            with process.stdin:
                process.stdin.write(json.dumps(order).encode())
        except BrokenPipeError:
            log.warning("the shim closed its pipe early", agent_id=agent_id)  # its answer, or the lack of one, says why
        process.wait()
        ready, _, _ = select.select([process.stdout], [], [], ANSWER_TIMEOUT)
        answer = process.stdout.readline() if ready else None
        if answer is not None and not _is_start(answer):
            _until_closed(process.stdout)
    _check(answer, order)


def _is_start(answer: bytes) -> bool:
    return bool(answer) and "started" in json.loads(answer)


def _until_closed(pipe: IO[bytes]) -> None:
    """Wait for the end of a shim that has started nothing: it is as good as over, and its record is removed next."""
    until = time.monotonic() + CLEAN_UP
    while (left := until - time.monotonic()) > 0 and select.select([pipe], [], [], left)[0]:
        if not os.read(pipe.fileno(), 4096):
            return


def _check(answer: bytes | None, order: dict[str, Any]) -> None:
    if answer is None:
        raise UnsettledStartError(
            SpawnCode.CAPACITY, f"the agent was not started within {ANSWER_TIMEOUT:.0f} s: this host is overloaded"
        )
    if not answer:
        raise TransientSpawnError(
            SpawnCode.CAPACITY, "the agent's supervisor died at its start: is this host out of memory?"
        )
    refused = json.loads(answer).get("refused")
    if refused is not None:
        raise _refusal(refused["stage"], int(refused["errno"]), order)


_UNRUNNABLE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.EISDIR, errno.ELOOP})


def _refusal(stage: str, number: int, order: dict[str, Any]) -> SpawnError:
    """What it means that the agent could not be started at this stage with this errno."""
    program, reason = order["argv"][0], os.strerror(number)
    if stage == "exec" and number in _UNRUNNABLE:
        return PermanentSpawnError(
            SpawnCode.COMMAND_NOT_FOUND,
            f"{program!r} cannot be run by the agent's user on this host: {reason}. Install it there, make it (and the "
            "interpreter in its first line) executable for that user, or correct the label set's `command`",
        )
    if stage == "cgroup":
        return TransientSpawnError(
            SpawnCode.CAPACITY,
            f"the agent's control group could not be entered ({reason}): see who else changes hatchway's groups below "
            "/sys/fs/cgroup on this host",
        )
    if stage == "home" and number == errno.EACCES:
        return PermanentSpawnError(
            SpawnCode.INVALID_SPEC,
            f"the agent's user cannot enter {order['home']}: let others pass through every directory above it "
            "(chmod o+x), or give the worker a state directory elsewhere",
        )
    if stage == "directory" and number in _UNRUNNABLE:
        return PermanentSpawnError(
            SpawnCode.INVALID_SPEC,
            f"the agent's user cannot enter the label set's `workingDirectory` {order['directory']!r}: {reason}",
        )
    return spawn_error_of(OSError(number, reason), f"starting {program!r} (step {stage!r})")
