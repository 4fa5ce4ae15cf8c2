"""A proxy that cuts, hangs and delays: the network faults that tests put between two real servers."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Self

CHUNK = 65536


class Mode(Enum):
    PASS = "pass"
    CUT = "cut"
    HANG = "hang"


class FaultProxy:
    """Forwards connections to `target`, a (host, port) or the path of a Unix socket; listens on `host`.

    `cut` breaks every open connection and each new one at once; `hang` keeps connections open and moves no byte;
    `heal` undoes both. `delay` holds every chunk back for so many seconds, in each direction. `tap` is called with
    each chunk that passes, in a thread of the proxy's own.
    """

    def __init__(
        self,
        target: tuple[str, int] | Path,
        delay: float = 0.0,
        *,
        host: str = "127.0.0.1",
        tap: Callable[[bytes], None] | None = None,
    ) -> None:
        self.target = target
        self.delay = delay
        self._host = host
        self._tap = tap
        self._mode = Mode.PASS
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server((host, 0), backlog=512)
        self._closed = False
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def address(self) -> str:
        return f"{self._host}:{self.port}"

    def cut(self) -> None:
        self._switch(Mode.CUT)
        self._break_all()

    def hang(self) -> None:
        self._switch(Mode.HANG)

    def heal(self) -> None:
        self._switch(Mode.PASS)

    def close(self) -> None:
        """Stop listening, and break what is open."""
        self._closed = True
        # Closing alone does not wake a thread that waits in accept().
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._switch(Mode.CUT)
        self._break_all()
        self._acceptor.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _switch(self, mode: Mode) -> None:
        with self._changed:
            self._mode = mode
            self._changed.notify_all()

    def _break_all(self) -> None:
        with self._changed:
            broken = list(self._open)
        for connection in broken:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            if self._wait_while_hanging() is Mode.CUT:
                return
            try:
                upstream = self._connect()
            except OSError:
                return
            with upstream, self._registered(client, upstream), suppress(OSError):
                # A cut between the first look and the registration has not seen this pair.
                if self._wait_while_hanging() is not Mode.CUT:
                    self._pump(client, upstream)

    def _connect(self) -> socket.socket:
        if isinstance(self.target, Path):
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(str(self.target))
            return upstream
        upstream = socket.create_connection(self.target, timeout=10)
        upstream.settimeout(None)
        upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return upstream

    def _registered(self, *connections: socket.socket) -> _Registration:
        return _Registration(self._open, self._changed, connections)

    def _pump(self, client: socket.socket, upstream: socket.socket) -> None:
        if client.family == socket.AF_INET:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, upstream)
            selector.register(upstream, selectors.EVENT_READ, client)
            while selector.get_map():
                for key, _ in selector.select():
                    source, sink = key.fileobj, key.data
                    if not isinstance(source, socket.socket):
                        continue
                    chunk = source.recv(CHUNK)
                    if self._wait_while_hanging() is Mode.CUT:
                        return
                    if self.delay:
                        time.sleep(self.delay)
                    if self._tap and chunk:
                        self._tap(chunk)
                    if chunk:
                        sink.sendall(chunk)
                    else:
                        # One side is done sending; the other may still have an answer on its way.
                        selector.unregister(source)
                        sink.shutdown(socket.SHUT_WR)

    def _wait_while_hanging(self) -> Mode:
        with self._changed:
            self._changed.wait_for(lambda: self._mode is not Mode.HANG)
            return self._mode


class _Registration:
    """Keeps a pair of connections in the set that `cut` breaks, for as long as they are pumped."""

    def __init__(
        self, known: set[socket.socket], guard: threading.Condition, connections: tuple[socket.socket, ...]
    ) -> None:
        self._known, self._guard, self._connections = known, guard, connections

    def __enter__(self) -> None:
        with self._guard:
            self._known.update(self._connections)

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._known.difference_update(self._connections)
