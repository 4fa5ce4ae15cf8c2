"""Ports of this machine that nobody listens on."""

from __future__ import annotations

import socket


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that was free a moment ago; whoever takes it next may be somebody else, who then hears "in use"."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port


def port_or_free(wanted: int) -> int:
    """`wanted` where nobody listens on it, else a free one."""
    with socket.socket() as probe:
        # As servers do, so that connections of the last one, still in TIME_WAIT, do not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return free_port()
    return wanted
