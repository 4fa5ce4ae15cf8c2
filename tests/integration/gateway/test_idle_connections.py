"""Connections that ask for nothing must not keep a gateway from those that ask."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from hatchway.dev.ports import free_port
from hatchway.gateway import connections
from tests.support.door import Door, OpenDoor
from tests.support.lab import Lab
from tests.support.namespaces import until

Open = Callable[..., Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
async def connect() -> AsyncIterator[Open]:
    made: list[asyncio.StreamWriter] = []

    async def open_one(door: Door, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = int(door.url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        made.append(writer)
        return reader, writer

    yield open_one
    for writer in made:
        writer.close()


async def end_of(reader: asyncio.StreamReader) -> bytes:
    """What came until the gateway closed the connection."""
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("said", [b"", HALF], ids=["nothing", "half a request"])
@pytest.mark.parametrize("answered_before", [False, True], ids=["new", "answered before"])
async def test_a_connection_whose_headers_do_not_come_is_closed(
    *, open_door: OpenDoor, connect: Open, monkeypatch: pytest.MonkeyPatch, said: bytes, answered_before: bool
) -> None:
    monkeypatch.setattr(connections, "HEADERS_S", 3.0 if answered_before else 0.5)  # as long as its request may take
    door = await open_door()
    reader, writer = await connect(door)
    if answered_before:
        writer.write(HALF + b"\r\n")
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200 ")
        await asyncio.wait_for(reader.readuntil(b"}"), 10)

    writer.write(said)

    assert await end_of(reader) == b""


async def test_one_address_holds_so_many_connections_and_still_gets_in(
    open_door: OpenDoor, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_PER_ADDRESS", 5)
    door = await open_door()
    other, _ = await connect(door, "127.0.0.2")
    held = [await connect(door) for _ in range(5)]

    answer = await door.http.get(f"{door.url}/healthz")

    assert answer.status_code == 200
    assert await end_of(held[0][0]) == b""
    assert not any(reader.at_eof() for reader, _ in held[1:])
    assert not other.at_eof()


async def test_a_call_under_way_is_not_ended_for_a_new_connection(
    open_door: OpenDoor, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_PER_ADDRESS", 1)
    door = await open_door()
    asking, writer = await connect(door)
    head = "POST /v1/claims/redeem HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
    writer.write(head.encode() + b"{")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asking.read(1), 0.3)  # its headers are there, its body is not

    late, _ = await connect(door)
    refused = await end_of(late)
    writer.write(b"}")

    assert refused == b""
    assert (await asyncio.wait_for(asking.readline(), 10)).startswith(b"HTTP/1.1 4")


async def test_behind_a_proxy_its_address_is_not_bounded(
    open_door: OpenDoor, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_PER_ADDRESS", 2)
    door = await open_door(behind_tls_proxy=True)
    held = [await connect(door) for _ in range(5)]

    answer = await door.http.get(f"{door.url}/healthz")

    assert answer.status_code == 200
    assert not any(reader.at_eof() for reader, _ in held)


async def test_a_gateway_takes_as_many_descriptors_as_it_may_have(lab: Lab, module_database_url: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    port = free_port("127.0.0.1")
    start = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, int(sys.argv.pop(1)))); "
        "runpy.run_module('hatchway.cli', run_name='__main__', alter_sys=True)"
    )

    environment = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": module_database_url,
        "TEMPORAL_ADDRESS": lab.temporal.service_client.config.target_host,
        "TEMPORAL_NAMESPACE": lab.temporal.namespace,
    }

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", start, str(hard), "gateway", "--bind", f"127.0.0.1:{port}", "--metrics-bind", "none",
        env=environment, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await until(lambda: _answers(port), what="the gateway")
        limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    finally:
        process.kill()
        await process.wait()

    assert limits == (hard, hard)


async def _answers(port: int) -> bool:
    async with httpx.AsyncClient(trust_env=False) as http:
        try:
            return (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        except httpx.TransportError:
            return False
