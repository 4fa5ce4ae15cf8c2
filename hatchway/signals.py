"""What the signals of a worker's process mean."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import NoReturn


def heed_signals(hangup: asyncio.Event, at_once: asyncio.Event) -> asyncio.Event:
    """The event of the first SIGTERM or SIGINT. A second one sets `at_once`, a third waits for nothing at all.

    SIGHUP sets `hangup`.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        if at_once.is_set():
            leave_at_once()
        (at_once if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    return stop


def leave_at_once() -> NoReturn:
    """End this process with exit code 0 and wait for nothing. What ran is taken up when its heartbeats stay away."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
