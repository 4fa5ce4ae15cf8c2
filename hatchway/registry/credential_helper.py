"""Asking a `docker-credential-*` program, which is somebody else's: it may be missing, hang, or say anything.

The protocol is Docker's (https://github.com/docker/docker-credential-helpers): `docker-credential-NAME get` reads a
server from stdin and prints {"ServerURL", "Username", "Secret"}, or says "credentials not found" on stdout and fails.
Nothing that a helper prints is ever quoted: it may be the secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from hatchway.errors import AuthError, AuthUnavailable

PREFIX = "docker-credential-"
TIME_LIMIT = timedelta(seconds=10)
MOST_BYTES = 64 * 1024
"""An answer is a few hundred bytes; the longest tokens of registries are some KiB."""

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
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "get",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=passed_on,
            cwd="/",
            start_new_session=True,
        )
    except OSError as e:
        raise AuthError(f"the credential helper {PREFIX}{name} cannot be run: {os.strerror(e.errno or 0)}") from None
    said = b""
    try:
        async with asyncio.timeout(limit.total_seconds()):
            said = await _converse(process, server)
            code = await process.wait() if len(said) <= MOST_BYTES else 0
    except TimeoutError:
        raise AuthUnavailable(
            f"the credential helper {PREFIX}{name} did not answer within {limit.total_seconds():g} s"
        ) from None
    finally:
        await _end(process)
    if len(said) > MOST_BYTES:
        raise AuthError(f"the credential helper {PREFIX}{name} printed more than {MOST_BYTES // 1024} KiB")
    if code != 0:
        if _NOT_FOUND.search(said):
            return None
        raise AuthError(f"the credential helper {PREFIX}{name} failed with exit code {code}; run it by hand to see why")
    return _answer(name, said)


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


async def _converse(process: asyncio.subprocess.Process, server: str) -> bytes:
    """Its output up to its end, or to one byte more than is taken."""
    assert process.stdin is not None  # noqa: S101 - both were asked for
    assert process.stdout is not None  # noqa: S101
    try:
        process.stdin.write(server.encode())
        await process.stdin.drain()
        process.stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it asks nothing: what it prints is its answer all the same
    said = b""
    while len(said) <= MOST_BYTES and (chunk := await process.stdout.read(MOST_BYTES + 1 - len(said))):
        said += chunk
    return said


async def _end(process: asyncio.subprocess.Process) -> None:
    """Nothing of it stays, neither the program nor what it started: they are one process group, of its number.

    Numbers are given out in a circle, so in the moment since it may have ended nobody else can have got this one.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all of it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _answer(name: str, said: bytes) -> HelperAnswer | None:
    try:
        answer = json.loads(said)
    except ValueError:
        raise AuthError(f"the credential helper {PREFIX}{name} printed something else than JSON") from None
    username, secret = (answer.get("Username"), answer.get("Secret")) if isinstance(answer, dict) else (None, None)
    if not isinstance(username, str) or not isinstance(secret, str):
        raise AuthError(f"the credential helper {PREFIX}{name} printed JSON without a Username and a Secret")
    if not secret:
        return None
    return HelperAnswer(username, secret)
