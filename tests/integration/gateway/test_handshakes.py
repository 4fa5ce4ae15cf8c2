"""A gateway with TLS of its own, and connections whose handshake does not come: they keep nobody out."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from hatchway.gateway import connections
from tests.support.door import Door, OpenDoor

Open = Callable[..., Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00"
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def door(open_door: OpenDoor, certificate: tuple[Path, Path]) -> Door:
    cert, key = certificate
    return await open_door(tls_cert=cert, tls_key=key)


@pytest.fixture
def trust(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate[0]))


@pytest.fixture
async def connect(door: Door) -> AsyncIterator[Open]:
    """Opens connections and leaves them at that."""
    made: list[asyncio.StreamWriter] = []

    async def open_one() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(door.url.rsplit(":", 1)[1]))
        made.append(writer)
        return reader, writer

    yield open_one
    for writer in made:
        writer.transport.abort()


async def _end_of(reader: asyncio.StreamReader) -> bytes:
    """What came until the gateway closed the connection."""
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b""


async def _more(reader: asyncio.StreamReader) -> bytes:
    data = await asyncio.wait_for(reader.read(65_536), 10)
    assert data, "the gateway closed the connection"
    return data


async def _answers(door: Door, trust: ssl.SSLContext) -> bool:
    async with httpx.AsyncClient(timeout=30, trust_env=False, verify=trust) as http:
        return (await http.get(f"{door.url.replace('127.0.0.1', 'localhost')}/healthz")).status_code == 200


@pytest.mark.parametrize("said", [b"", HALF_A_HELLO], ids=["nothing", "half a hello"])
async def test_a_connection_whose_handshake_does_not_come_is_closed_within_seconds(
    connect: Open, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_S", 0.5)
    reader, writer = await connect()

    writer.write(said)

    assert await _end_of(reader) == b""


async def test_one_address_holds_so_many_handshakes_and_still_gets_in(
    open_door: OpenDoor, certificate: tuple[Path, Path], trust: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_PER_ADDRESS", 5)
    cert, key = certificate
    door = await open_door(tls_cert=cert, tls_key=key)
    port = int(door.url.rsplit(":", 1)[1])
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
    other, other_writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))

    assert await _answers(door, trust)
    assert await _end_of(held[0][0]) == b""
    assert not any(reader.at_eof() for reader, _ in held[1:])
    assert not other.at_eof()
    for writer in (*(writer for _, writer in held), other_writer):
        writer.transport.abort()


async def test_a_connection_that_has_shaken_hands_is_counted_once(
    open_door: OpenDoor, certificate: tuple[Path, Path], trust: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_PER_ADDRESS", 2)
    cert, key = certificate
    door = await open_door(tls_cert=cert, tls_key=key)
    port = int(door.url.rsplit(":", 1)[1])
    greeted = [
        await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname="localhost") for _ in range(2)
    ]

    for reader, writer in greeted:
        writer.write(REQUEST)
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200 ")
        writer.transport.abort()


async def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(
    connect: Open, trust: ssl.SSLContext
) -> None:
    """TLS 1.3 lets a client send both in one segment."""
    reader, writer = await connect()
    came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trust.wrap_bio(came, goes, server_hostname="localhost")
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(goes.read())
            came.write(await _more(reader))

    tls.write(REQUEST)
    writer.write(goes.read())

    answer = b""
    while not answer.endswith(b"}"):
        try:
            answer += tls.read()
        except ssl.SSLWantReadError:
            came.write(await _more(reader))
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("said", [REQUEST, HALF_A_HELLO], ids=["no TLS", "gone half way"])
async def test_a_handshake_that_fails_ends_its_connection_and_nothing_else(
    door: Door, connect: Open, trust: ssl.SSLContext, said: bytes
) -> None:
    reader, writer = await connect()

    writer.write(said)
    writer.write_eof()

    assert not (await _end_of(reader)).startswith(b"HTTP/1.1")
    assert await _answers(door, trust)
