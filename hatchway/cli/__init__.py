"""The `hatchway` command. Light to import: running an agent needs neither the Temporal nor the Docker SDK."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and end the process with its exit code (`hatchway.cli.failures.ExitCode`)."""
    from hatchway.cli.app import run

    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        # A reader that has gone (`hatchway list | head -1`) is no failure of ours.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Not sys.exit: a short process that used the Temporal SDK aborts at interpreter shutdown in 5 of 40 runs
    # (PyGILState_Release, sdk-python issue 300), which turns exit code 0 into 134.
    os._exit(code)
