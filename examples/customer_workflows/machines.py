"""The machines of this example: processes of this host that run Hatchway's reference agent. Linux.

Everything is on disk, in a directory for each agent, and the directory outlives the worker:

    deciding    locked while a boot or a delete looks and acts, so that the two do not overtake each other
    alive       locked by the agent's own process for as long as it lives, from before it exists
    pid         written by that process itself
    deleted     a delete has been here: a boot that comes later, out of order, makes nothing
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import hatchway.agent
from hatchway.events import ScaleUp

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""
PAUSE_S = 0.02

START = 'setsid /bin/sh -c \'echo $$ > pid.new && mv pid.new pid && exec "$@"\' sh "$@" </dev/null >log 2>&1 &'
"""The agent gets a session of its own and no parent that waits for it."""


class Unwanted(Exception):
    """The agent was deleted before it was booted: the two events came out of order."""


class Machines:
    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is what every agent gets beside its own: HATCHWAY_AGENT_COMMAND, above all."""
        self._directory = directory
        self._environment = dict(environment or {})
        directory.mkdir(parents=True, exist_ok=True)

    def boot(self, wanted: ScaleUp, claim_code: str) -> None:
        """One agent for this id, however often it is asked for. Raises Unwanted."""
        place = self._place(wanted.agent_id)
        place.mkdir(exist_ok=True)
        with _locked(place / "deciding"):
            if (place / "deleted").exists():
                raise Unwanted(f"{wanted.agent_id} was deleted already")
            if (place / "pid").exists():
                return  # it runs, or has run and ended: its claim is spent
            with (place / "alive").open("w") as alive:
                try:
                    fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return  # an earlier attempt was cut off between making it and saying so
                subprocess.run(
                    ["/bin/sh", "-c", START, "sh", sys.executable, hatchway.agent.__file__],
                    cwd=place,
                    env=self._environment_of(wanted, claim_code),
                    pass_fds=[alive.fileno()],
                    check=True,
                )

    def delete(self, agent_id: str) -> None:
        """Gone when it returns: ended, or never there."""
        place = self._place(agent_id)
        place.mkdir(exist_ok=True)
        with _locked(place / "deciding"):
            (place / "deleted").touch()
            begun = time.monotonic()
            while _lives(place):
                late = time.monotonic() - begun > GRACE_S
                self._signal(place, signal.SIGKILL if late else signal.SIGTERM)
                time.sleep(PAUSE_S)

    def runs(self, agent_id: str) -> bool:
        """Whether the agent's process lives."""
        place = self._place(agent_id)
        if not place.exists():
            return False
        with _locked(place / "deciding"):  # a look takes the lock for a moment, which a boot would misread
            return _lives(place)

    def agents(self) -> list[str]:
        """Everybody who was ever booted here, and not deleted."""
        return sorted(place.parent.name for place in self._directory.glob("*/pid") if not _deleted(place.parent))

    def _place(self, agent_id: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}", agent_id):
            raise ValueError("no agent has such an id")
        return self._directory / agent_id

    def _environment_of(self, wanted: ScaleUp, claim_code: str) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "KICI_ORCHESTRATOR_URL": wanted.orchestrator_url,
            "KICI_AGENT_ID": wanted.agent_id,
            "KICI_LABELS": ",".join(wanted.labels),
            "KICI_SCALER_MANAGED": "1",
            "KICI_SCALER_CLAIM_CODE": claim_code,
            **self._environment,
        }

    @staticmethod
    def _signal(place: Path, number: signal.Signals) -> None:
        try:
            os.killpg(int((place / "pid").read_text()), number)
        except (FileNotFoundError, ProcessLookupError):
            return  # it has only just been made, or ends this very moment: the lock says when


def _lives(place: Path) -> bool:
    try:
        with (place / "alive").open() as alive:
            fcntl.flock(alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _deleted(place: Path) -> bool:
    return (place / "deleted").exists()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
