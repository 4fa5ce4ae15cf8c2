"""An engine that is slow, silent or gone costs its own spawns a typed failure, and nobody else anything."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import docker
import pytest

from hatchway.backends import container_engine
from hatchway.backends.container import ContainerBackend
from hatchway.backends.container_create import container_name
from hatchway.backends.container_errors import EngineUnreachable
from hatchway.dev import images
from hatchway.dev.registry import EmbeddedRegistry
from hatchway.errors import SpawnCode, SpawnError, TransientSpawnError
from hatchway.model import ComputeRef, ScaleDownReason
from hatchway.registry.auth import RegistryAuth
from tests.docker.backends.rig import FACTS, MakeBackend, MakeSpec, quiet
from tests.support.proxy import FaultProxy

Ours = Callable[[], list[dict[str, Any]]]
SOON = timedelta(seconds=6)
"""For a call whose answer is held back: every other call of the same spawn has it too, on a busy machine."""


@pytest.mark.scenario("S07")
async def test_an_engine_that_never_answers_fails_its_own_spawns_and_holds_up_no_other(
    make_backend: MakeBackend, proxied: ContainerBackend, engine_proxy: FaultProxy, spec: MakeSpec, idle_image: str
) -> None:
    healthy = make_backend()
    engine_proxy.hang()
    started = time.monotonic()

    stuck = [asyncio.create_task(proxied.spawn(spec(idle_image), quiet)) for _ in range(40)]
    await asyncio.sleep(0)
    wanted = spec(idle_image)
    ref = await healthy.spawn(wanted, quiet)
    healthy_took = time.monotonic() - started
    failures = await asyncio.gather(*stuck, return_exceptions=True)

    assert await healthy.find(wanted.agent_id) == ref
    assert healthy_took < 3
    assert time.monotonic() - started < 8
    assert {(type(f), getattr(f, "code", None)) for f in failures} == {
        (TransientSpawnError, SpawnCode.DAEMON_UNAVAILABLE)
    }


@pytest.mark.parametrize("where", ["no socket", "a file that is no socket", "nobody listens", "no such scheme"])
async def test_an_engine_that_is_not_there_is_said_in_one_sentence(
    make_backend: MakeBackend, spec: MakeSpec, tmp_path: Path, where: str
) -> None:
    (tmp_path / "file").write_text("")
    url = {
        "no socket": f"unix://{tmp_path}/docker.sock",
        "a file that is no socket": f"unix://{tmp_path}/file",
        "nobody listens": "tcp://127.0.0.1:1",
        "no such scheme": "gopher://127.0.0.1:1",
    }[where]

    with pytest.raises(TransientSpawnError) as failed:
        await asyncio.wait_for(make_backend(url).spawn(spec("app:1"), quiet), 5)

    assert failed.value.code == SpawnCode.DAEMON_UNAVAILABLE
    assert url in str(failed.value)


async def test_all_workers_of_an_engine_call_it_by_its_own_id(engine_proxy: FaultProxy, installation: str) -> None:
    near = await ContainerBackend.connect(None, installation)
    far = await ContainerBackend.connect(f"tcp://{engine_proxy.address}", installation)
    named = await ContainerBackend.connect(None, installation, host_id="rack-1")

    assert near.host_id == far.host_id
    assert near.host_id.startswith("docker-")
    assert near.host_id.replace("-", "").isalnum()
    assert named.host_id == "rack-1"
    for backend in (near, far, named):
        await backend.close()


async def test_connecting_to_an_engine_that_is_down_says_so(installation: str) -> None:
    with pytest.raises(EngineUnreachable, match=r"tcp://127\.0\.0\.1:1 cannot be reached"):
        await ContainerBackend.connect("tcp://127.0.0.1:1", installation)


@pytest.fixture
def late_create(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The engine's answer to the first create arrives only when this is set; the effect has happened."""
    create, answers, first = docker.APIClient.create_container, threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Any:
        made = create(*args, **kwargs)
        if not first.is_set():
            first.set()
            answers.wait(30)
        return made

    monkeypatch.setattr(docker.APIClient, "create_container", slow)
    yield answers
    answers.set()


@pytest.fixture
def engine_called(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], threading.Event]]:
    """Has the answer to every call of this name held back until the event is set; the effect has happened."""
    answers = threading.Event()

    def hold(name: str) -> threading.Event:
        call = getattr(docker.APIClient, name)

        def slow(*args: Any, **kwargs: Any) -> Any:
            made = call(*args, **kwargs)
            answers.wait(30)
            return made

        monkeypatch.setattr(docker.APIClient, name, slow)
        return answers

    yield hold
    answers.set()


@pytest.mark.scenario("S01")
async def test_a_create_that_is_answered_too_late_is_undone(
    make_backend: MakeBackend, spec: MakeSpec, idle_image: str, ours: Ours, late_create: threading.Event
) -> None:
    backend = make_backend(call_timeout=SOON)
    with pytest.raises(TransientSpawnError) as failed:
        await backend.spawn(spec(idle_image), quiet)
    made = ours()

    late_create.set()

    assert failed.value.code == SpawnCode.DAEMON_UNAVAILABLE
    assert [c["State"] for c in made] == ["created"]
    async with asyncio.timeout(60):
        while ours():
            await asyncio.sleep(0.05)


@pytest.mark.scenario("S01")
async def test_a_create_that_is_answered_too_late_does_not_undo_the_next_attempt_s_agent(
    make_backend: MakeBackend, spec: MakeSpec, idle_image: str, ours: Ours, late_create: threading.Event
) -> None:
    backend, wanted = make_backend(call_timeout=SOON), spec(idle_image)
    with pytest.raises(TransientSpawnError):
        await backend.spawn(wanted, quiet)

    ref = await backend.spawn(wanted, quiet)
    late_create.set()
    await _undone("create a container")

    assert [(c["Id"], c["State"]) for c in ours()] == [(ref.ref, "running")]


async def test_a_start_that_is_answered_too_late_leaves_the_agent_at_work_to_the_next_attempt(
    make_backend: MakeBackend,
    spec: MakeSpec,
    idle_image: str,
    ours: Ours,
    engine_called: Callable[[str], threading.Event],
) -> None:
    """It runs since the engine took the call, and may have registered. Removed by its own spawn it would pass for torn
    down, and nobody would tell its provision."""
    backend, wanted = make_backend(call_timeout=SOON), spec(idle_image)
    engine_called("start")
    with pytest.raises(TransientSpawnError) as failed:
        await backend.spawn(wanted, quiet)
    (at_work,) = ours()

    ref = await backend.spawn(wanted, quiet)

    assert failed.value.code == SpawnCode.DAEMON_UNAVAILABLE
    assert (at_work["State"], at_work["Names"]) == ("running", [f"/{container_name(wanted.agent_id)}"])
    assert ref.ref == at_work["Id"]


async def _undone(doing: str) -> None:
    """Wait until the thread that undoes a late answer has come and gone."""
    names = {f"engine: {doing}", f"undo: {doing}"}
    quiet_for = 0
    async with asyncio.timeout(60):
        while quiet_for < 10:
            busy = any(t.name in names for t in threading.enumerate())
            quiet_for = 0 if busy else quiet_for + 1
            await asyncio.sleep(0.02)


async def test_calls_that_hang_are_bounded_in_number(
    make_backend: MakeBackend, engine_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_engine, "CALLS", 2)
    backend = make_backend(f"tcp://{engine_proxy.address}", call_timeout=timedelta(seconds=1))
    engine_proxy.hang()
    before = threading.active_count()

    finds = [asyncio.create_task(backend.find(f"agent-{i}")) for i in range(20)]
    await asyncio.sleep(0.5)
    threads = threading.active_count() - before
    failures = await asyncio.gather(*finds, return_exceptions=True)

    assert threads <= 2 + 1  # the calls, and the proxy's own thread of the one connection
    assert {type(f) for f in failures} == {EngineUnreachable}


@pytest.mark.needs("registry")
@pytest.mark.usefixtures("clean_images")
async def test_a_registry_that_stops_in_the_middle_of_a_layer_is_given_up(
    make_backend: MakeBackend, spec: MakeSpec, registry: EmbeddedRegistry
) -> None:
    image = images.python_image()
    # A few bytes more than any other image's layer: the engine would not ask for one that it has.
    registry.put("team/large:1", replace(image, layer=image.layer + bytes(1536)))
    host, _, port = registry.host.partition(":")
    backend = make_backend(pull_stall=timedelta(seconds=3))

    with FaultProxy((host, int(port)), delay=0.01) as proxy:
        auth = RegistryAuth(proxy.address, registry.login.username, registry.login.password)
        lines: list[str] = []

        def hang_when_it_flows(message: str) -> None:
            lines.append(message)
            if message.endswith("%"):
                proxy.hang()

        with pytest.raises(SpawnError) as failed:
            await asyncio.wait_for(
                backend.spawn(spec(f"{proxy.address}/team/large:1", auth=auth), hang_when_it_flows), 20
            )

    assert (type(failed.value), failed.value.code) == (TransientSpawnError, SpawnCode.REGISTRY_UNREACHABLE)
    assert lines[-1].endswith("%")


async def test_a_burst_of_spawns_and_teardowns_leaves_nothing(
    backend: ContainerBackend, spec: MakeSpec, idle_image: str, ours: Ours
) -> None:
    wanted = [spec(idle_image, stop_grace=timedelta(seconds=1)) for _ in range(12)]

    refs: list[ComputeRef] = await asyncio.gather(*(backend.spawn(one, quiet) for one in wanted))
    running = ours()
    await asyncio.gather(*(backend.destroy(one.agent_id, FACTS, ScaleDownReason.SHUTDOWN) for one in wanted))

    assert {c["Id"] for c in running} == {ref.ref for ref in refs}
    assert ours() == []
