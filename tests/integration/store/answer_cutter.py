"""A proxy that loses one answer: the server has done the work, the client never hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg


class AnswerCutter:
    """Forwards to Postgres. After `arm`, the next answer of the server is dropped and its connection cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._armed = False
        self.cuts = 0
        self.port = 0

    def arm(self) -> None:
        self._armed = True

    @classmethod
    @asynccontextmanager
    async def before(cls, dsn: str) -> AsyncIterator[tuple[AnswerCutter, str]]:
        """A running cutter, and the DSN that leads through it."""
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        cutter = cls(str(parts["host"]), int(str(parts["port"])))
        server = await asyncio.start_server(cutter._serve, "127.0.0.1", 0)
        cutter.port = server.sockets[0].getsockname()[1]
        try:
            yield cutter, psycopg.conninfo.make_conninfo(dsn, port=cutter.port)
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        asked = asyncio.Event()

        async def questions() -> None:
            while data := await reader.read(65536):
                asked.set()
                server_writer.write(data)
            server_writer.close()

        async def answers() -> None:
            while data := await server_reader.read(65536):
                # Only an answer to what was asked since: the last of an earlier answer may still be on its way.
                if self._armed and asked.is_set():
                    self._armed = False
                    self.cuts += 1
                    break
                asked.clear()
                writer.write(data)
            writer.close()
            server_writer.close()

        await asyncio.gather(questions(), answers(), return_exceptions=True)
