"""The proxy's faults, seen from a client: a test that cuts must be able to trust that it cut."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.proxy import FaultProxy


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """A proxy in front of a server that echoes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo(connection: socket.socket) -> None:
            with connection:
                while chunk := connection.recv(1024):
                    connection.sendall(chunk)

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=echo, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        with FaultProxy(server.getsockname()) as proxy:
            yield proxy
        server.shutdown(socket.SHUT_RDWR)


def _connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def _echoed(connection: socket.socket) -> bytes:
    connection.sendall(b"ping")
    return connection.recv(1024)


def test_a_healthy_proxy_passes_everything_on(proxy: FaultProxy) -> None:
    with _connect(proxy) as connection:
        assert _echoed(connection) == b"ping"


def test_a_cut_breaks_open_connections_and_new_ones(proxy: FaultProxy) -> None:
    with _connect(proxy) as before:
        _echoed(before)

        proxy.cut()

        assert before.recv(1024) == b""
    with _connect(proxy) as after:
        assert after.recv(1024) == b""


def test_a_hung_proxy_accepts_and_moves_nothing_until_it_is_healed(proxy: FaultProxy) -> None:
    with _connect(proxy) as before:
        _echoed(before)
        proxy.hang()
        with _connect(proxy) as after:
            for connection in (before, after):
                connection.sendall(b"ping")
                connection.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    connection.recv(1024)

            proxy.heal()

            for connection in (before, after):
                connection.settimeout(5)
                assert connection.recv(1024) == b"ping"


def test_a_healed_cut_passes_new_connections(proxy: FaultProxy) -> None:
    proxy.cut()

    proxy.heal()

    with _connect(proxy) as connection:
        assert _echoed(connection) == b"ping"


def test_a_delay_holds_back_both_directions(proxy: FaultProxy) -> None:
    proxy.delay = 0.05
    with _connect(proxy) as connection:
        began = time.monotonic()

        _echoed(connection)

        assert time.monotonic() - began >= 0.1


def test_the_tap_hears_both_directions(proxy: FaultProxy) -> None:
    heard: list[bytes] = []

    with FaultProxy(("127.0.0.1", proxy.port), tap=heard.append) as tapped, _connect(tapped) as connection:
        assert _echoed(connection) == b"ping"

    assert heard == [b"ping", b"ping"]
