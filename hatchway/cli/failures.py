"""What went wrong, as an exit code and one sentence."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum

from hatchway.errors import ConfigError, HatchwayError, InvalidReference, StoreUnreachable
from hatchway.printable import printable

DEBUG_VARIABLE = "HATCHWAY_DEBUG"
"""Set to 1, a failure that nobody foresaw shows its traceback."""


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    DECLINED = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


class Failure(HatchwayError):
    """A command cannot do what it was asked. `error` is a word for programs, `str()` a sentence for people."""

    def __init__(self, code: ExitCode, error: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.error = error


def usage(message: str) -> Failure:
    """Bad input: exit code 2."""
    return Failure(ExitCode.USAGE, "usage", message)


def unreachable(message: str) -> Failure:
    """A server does not answer: exit code 4."""
    return Failure(ExitCode.UNREACHABLE, "unreachable", message)


def failed(error: str, message: str) -> Failure:
    """It was tried, and did not work: exit code 1."""
    return Failure(ExitCode.FAILED, error, message)


def failure_of(error: BaseException) -> Failure:
    """What an exception means to whoever ran the command."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, StoreUnreachable):
        return unreachable(f"{error}; is DATABASE_URL right, and is Postgres up?")
    if isinstance(error, ConfigError):
        return Failure(ExitCode.USAGE, "config", str(error))
    if isinstance(error, InvalidReference):
        return Failure(ExitCode.USAGE, "invalid_reference", str(error))
    if isinstance(error, HatchwayError):
        return failed(_word(type(error).__name__), str(error))
    if isinstance(error, KeyboardInterrupt):
        return Failure(ExitCode.INTERRUPTED, "interrupted", "interrupted")
    # A bug. Its text can quote anything, a password too, so it is shown only where somebody asks for it.
    return failed("internal", f"unforeseen {type(error).__name__}; {DEBUG_VARIABLE}=1 shows where")


def report(error: BaseException, *, as_json: bool, say: Callable[[str], None] | None = None) -> ExitCode:
    """Tell stderr what went wrong, and answer the exit code."""
    say = say or _say
    failure = failure_of(error)
    if failure.error == "internal" and os.environ.get(DEBUG_VARIABLE) == "1":
        say("".join(traceback.format_exception(error)).rstrip())
    if as_json:
        say(json.dumps({"error": failure.error, "message": str(failure)}))
    else:
        # A sentence may quote a file, a server or an argument: none of them may move the cursor of whoever reads it.
        say("\n".join(printable(line) for line in f"hatchway: {failure}".splitlines()))
    return failure.code


def _word(name: str) -> str:
    """`SchemaOutdated` as `schema_outdated`: the spelling of every `error` on the wire."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name.removesuffix("Error")).lstrip("_")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
