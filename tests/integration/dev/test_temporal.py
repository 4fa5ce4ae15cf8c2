"""The embedded Temporal server, by what its owner relies on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from hatchway import search_attributes
from hatchway.dev.temporal import EmbeddedTemporal, TemporalServerError
from tests.support.temporal_fixtures import TemporalServer


@workflow.defn
class Napper:
    """Sleeps 20 ms, five times over."""

    @workflow.run
    async def run(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0.02)


async def _start(client: Client, task_queue: str, workflow_id: str) -> None:
    await client.start_workflow(Napper.run, id=workflow_id, task_queue=task_queue)


def _listening(pid: int) -> set[str]:
    """The addresses that a process listens on, as /proc/net tells them: only IPv4 loopback is expected."""
    inodes = {os.readlink(fd)[8:-1] for fd in Path(f"/proc/{pid}/fd").iterdir() if "socket:" in os.readlink(fd)}
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


async def test_it_knows_our_search_attributes(temporal: TemporalServer, task_queue: str) -> None:
    pairs = [SearchAttributePair(key, "x") for key in search_attributes.ALL]

    await temporal.client.start_workflow(
        Napper.run, id=task_queue, task_queue=task_queue, search_attributes=TypedSearchAttributes(pairs)
    )

    description = await temporal.client.get_workflow_handle(task_queue).describe()
    assert {pair.key.name for pair in description.typed_search_attributes} >= {k.name for k in search_attributes.ALL}


async def test_it_rounds_no_timer_up_to_a_second(temporal: TemporalServer, task_queue: str) -> None:
    async with Worker(
        temporal.client, task_queue=task_queue, workflows=[Napper], workflow_runner=UnsandboxedWorkflowRunner()
    ):
        handle = await temporal.client.start_workflow(Napper.run, id=task_queue, task_queue=task_queue)
        await handle.result()

    # Five naps of 20 ms. The stock server rounds each up to a second: five seconds or more. Read off their timers:
    # how long the worker takes in between is another matter.
    events = [event async for event in handle.fetch_history_events()]
    began = {event.event_id: event.event_time.ToDatetime() for event in events}
    naps = [
        event.event_time.ToDatetime() - began[event.timer_fired_event_attributes.started_event_id]
        for event in events
        if event.HasField("timer_fired_event_attributes")
    ]
    assert len(naps) == 5
    assert sum(naps, timedelta()) < timedelta(seconds=2.5)


async def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path / "server") as server:
        assert _listening(server.pid) == {"0100007F"}


async def test_it_serves_the_ui_and_metrics_where_it_says(tmp_path: Path, unused_tcp_port: int) -> None:
    async with (
        EmbeddedTemporal(tmp_path / "server", metrics_port=unused_tcp_port) as server,
        httpx.AsyncClient() as http,
    ):
        assert server.ui_url is not None
        page = await http.get(server.ui_url, follow_redirects=True)
        metrics = await http.get(f"http://127.0.0.1:{unused_tcp_port}/metrics")

    assert page.status_code == 200
    assert "service_requests" in metrics.text


async def test_its_directory_is_closed_to_others(tmp_path: Path) -> None:
    directory = tmp_path / "server"
    async with EmbeddedTemporal(directory):
        modes = {path.name: path.stat().st_mode & 0o077 for path in [directory, directory / "temporal.log"]}

    assert set(modes.values()) == {0}


async def test_a_history_survives_a_kill_9(tmp_path: Path) -> None:
    server = EmbeddedTemporal(tmp_path / "server", ui=False)
    await server.start()
    address = server.address
    await _start(await Client.connect(address), "q", "survivor")

    server.kill()
    await server.start()

    try:
        assert server.address == address
        description = await (await Client.connect(address)).get_workflow_handle("survivor").describe()
        assert description.id == "survivor"
    finally:
        await server.stop()


async def test_a_second_owner_is_refused(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path / "server", ui=False) as first:
        second = EmbeddedTemporal(tmp_path / "server", ui=False)

        with pytest.raises(TemporalServerError, match="another process already runs"):
            await second.start()

        assert (await Client.connect(first.address)).namespace == "default"


LEAVE_ORPHAN = """
import asyncio, os, signal, sys
from pathlib import Path
from hatchway.dev.temporal import EmbeddedTemporal

async def main():
    server = EmbeddedTemporal(Path(sys.argv[1]), ui=False)
    await server.start()
    print(server.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_the_server_of_an_owner_that_was_killed_is_ended_by_the_next(tmp_path: Path) -> None:
    directory = tmp_path / "server"
    owner = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", LEAVE_ORPHAN, str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    orphan = int(owner.stdout)
    assert owner.returncode == -signal.SIGKILL
    assert Path(f"/proc/{orphan}/exe").resolve().name == "temporal"

    async with EmbeddedTemporal(directory, ui=False) as server:
        assert server.pid != orphan

    assert not Path(f"/proc/{orphan}").exists() or "Z" in Path(f"/proc/{orphan}/stat").read_text().split()[2]


async def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_running(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path / "first", ui=False) as first:
        port = int(first.address.rpartition(":")[2])

        with pytest.raises(TemporalServerError, match=rf"port {port} .* cannot be used .* Address already in use"):
            await EmbeddedTemporal(tmp_path / "second", ui=False, port=port).start()

    async with EmbeddedTemporal(tmp_path / "second", ui=False) as second:
        assert second.pid


async def test_a_server_that_ends_at_once_is_an_error_with_its_own_words(tmp_path: Path) -> None:
    broken = EmbeddedTemporal(tmp_path / "server", ui=False, log_level="loud")

    with pytest.raises(TemporalServerError, match=r"ended with exit code \d+: .*loud"):
        await broken.start()


def test_a_missing_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hatchway.dev import temporal

    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(TemporalServerError, match=r"install the dev extra .*\.\[dev\]"):
        temporal.temporal_binary()
