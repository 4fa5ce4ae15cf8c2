"""Asking a `docker-credential-*` program, which is somebody else's: it may be missing, hang, or say anything.

The protocol is Docker's (https://github.com/docker/docker-credential-helpers): `docker-credential-NAME get` reads a
server from stdin and prints {"ServerURL", "Username", "Secret"}, or says "credentials not found" on stdout and fails.
Nothing that a helper prints is ever quoted: it may be the secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta

from hatchway.errors import AuthError, AuthUnavailable
from hatchway.foreign_json import parse_foreign

PREFIX = "docker-credential-"
TIME_LIMIT = timedelta(seconds=10)
MOST_BYTES = 64 * 1024
"""An answer is a few hundred bytes; the longest tokens of registries are some KiB."""

_LOOK_EVERY = 0.02
"""Seconds between two looks at whether it has ended, or nobody waits for it any more."""

_THREADS = ThreadPoolExecutor(8, thread_name_prefix="credential-helper")
"""Of their own: helpers that hang hold up other helpers, and nothing else."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""What a helper needs to find its files and its keyring. The worker's own secrets stay with the worker."""
_NOT_FOUND = re.compile(rb"credentials not found", re.IGNORECASE)


class HelperMissing(AuthError):
    """There is no such program on this host."""


@dataclass(frozen=True)
class HelperAnswer:
    username: str
    secret: str = field(repr=False)


async def ask_helper(
    name: str, server: str, environ: Mapping[str, str], limit: timedelta = TIME_LIMIT
) -> HelperAnswer | None:
    """What the helper has for `server`; None: it says that it has nothing.

    Raises HelperMissing, AuthError for a name that is none and for an answer that cannot be used, AuthUnavailable for a
    helper that does not answer in time. No shell is involved, and no more of the environment than it needs.
    """
    program = _program(name, environ)
    passed_on = {key: environ[key] for key in _PASSED_ON if key in environ}
    given_up = threading.Event()
    try:
        ran = await asyncio.get_running_loop().run_in_executor(
            _THREADS, _run, program, server, passed_on, limit.total_seconds(), given_up
        )
    except OSError as e:
        raise AuthError(f"the credential helper {PREFIX}{name} cannot be run: {os.strerror(e.errno or 0)}") from None
    finally:
        given_up.set()
    if len(ran.said) > MOST_BYTES:
        raise AuthError(f"the credential helper {PREFIX}{name} printed more than {MOST_BYTES // 1024} KiB")
    if ran.code is None:
        raise AuthUnavailable(f"the credential helper {PREFIX}{name} did not answer within {limit.total_seconds():g} s")
    if ran.code == 0:
        return _answer(name, ran.said)
    if _NOT_FOUND.search(ran.said):
        return None
    raise AuthError(f"the credential helper {PREFIX}{name} failed with exit code {ran.code}; run it by hand to see why")


@dataclass(frozen=True)
class _Ran:
    said: bytes = field(repr=False)
    code: int | None
    """None: it did not end in time, or was not waited for."""


def _run(program: str, server: str, environ: Mapping[str, str], limit: float, given_up: threading.Event) -> _Ran:
    deadline = time.monotonic() + limit
    with subprocess.Popen(
        [program, "get"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
        cwd="/",
        bufsize=0,
        start_new_session=True,
    ) as process:
        try:
            return _converse(process, server, lambda: given_up.is_set() or time.monotonic() > deadline)
        finally:
            # Neither the program stays nor what it started, save what has left for a session of its own. It has not
            # been reaped yet, so the number of its process group is nobody else's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


def _converse(process: subprocess.Popen[bytes], server: str, over: Callable[[], bool]) -> _Ran:
    """Its output up to its end, or to one byte more than is taken."""
    assert process.stdin is not None  # noqa: S101 - both were asked for
    assert process.stdout is not None  # noqa: S101
    with contextlib.suppress(BrokenPipeError):  # one that asks nothing may still have an answer
        process.stdin.write(server.encode())  # a host fits into the pipe, so this cannot block
        process.stdin.close()
    output = select.poll()
    output.register(process.stdout, select.POLLIN | select.POLLHUP)
    said, open_ = b"", True
    while not over():
        if not open_:
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is not None:
                return _Ran(said, -ended.si_status if ended.si_code != os.CLD_EXITED else ended.si_status)
            time.sleep(_LOOK_EVERY)
        elif output.poll(_LOOK_EVERY * 1000):
            chunk = os.read(process.stdout.fileno(), MOST_BYTES + 1 - len(said))
            said, open_ = said + chunk, bool(chunk)
            if len(said) > MOST_BYTES:
                break
    return _Ran(said, None)


def _program(name: str, environ: Mapping[str, str]) -> str:
    if len(name) > 100 or not _NAME.fullmatch(name):
        raise AuthError(
            f"what the docker config names is no credential helper: the name follows {PREFIX} and holds letters, "
            "digits, dots, dashes and underscores only, and no path"
        )
    program = shutil.which(PREFIX + name, path=environ.get("PATH", os.defpath))
    if program is None:
        raise HelperMissing(f"the credential helper {PREFIX}{name} is not on this worker's PATH")
    return os.path.abspath(program)


def _answer(name: str, said: bytes) -> HelperAnswer | None:
    try:
        answer = parse_foreign(said)
    except ValueError:
        raise AuthError(f"the credential helper {PREFIX}{name} printed something else than JSON") from None
    username, secret = (answer.get("Username"), answer.get("Secret")) if isinstance(answer, dict) else (None, None)
    if not isinstance(username, str) or not isinstance(secret, str):
        raise AuthError(f"the credential helper {PREFIX}{name} printed JSON without a Username and a Secret")
    if not secret:
        return None
    return HelperAnswer(username, secret)
