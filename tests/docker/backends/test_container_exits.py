"""How the end of an agent becomes known, and what of its output leaves the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, cast

import docker
import pytest

from hatchway.backends import container_exits
from hatchway.backends.base import SpawnSpec
from hatchway.backends.container import ContainerBackend
from hatchway.errors import HatchwayError
from hatchway.model import ComputeExit, ScaleDownReason
from tests.docker.backends.rig import FACTS, MakeBackend, MakeSpec, ShellImage, quiet
from tests.support.proxy import FaultProxy

Ours = Callable[[], list[dict[str, Any]]]
SECRET = "s3cret/of+the=job!"  # 18 bytes: its base64 holds nothing but it


class Watch:
    """What one watch tells, as it comes."""

    def __init__(self, backend: ContainerBackend) -> None:
        self.told: asyncio.Queue[ComputeExit | HatchwayError] = asyncio.Queue()
        self._task = asyncio.create_task(self._follow(backend))

    async def _follow(self, backend: ContainerBackend) -> None:
        try:
            async with aclosing(cast("Any", backend.exits())) as exits:
                async for exit_ in exits:
                    self.told.put_nowait(exit_)
        except HatchwayError as e:
            self.told.put_nowait(e)

    async def next(self, seconds: float = 60) -> ComputeExit | HatchwayError:
        async with asyncio.timeout(seconds):
            return await self.told.get()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


@pytest.fixture
async def watch() -> AsyncIterator[Callable[[ContainerBackend], Watch]]:
    begun: list[Watch] = []

    def begin(backend: ContainerBackend) -> Watch:
        begun.append(Watch(backend))
        return begun[-1]

    yield begin
    for one in begun:
        await one.end()


async def spawned(backend: ContainerBackend, wanted: SpawnSpec, *, ended: docker.DockerClient | None = None) -> str:
    ref = await backend.spawn(wanted, quiet)
    if ended is not None:
        await asyncio.to_thread(ended.api.wait, ref.ref)
    return wanted.agent_id


async def test_an_end_is_told_within_a_second_and_once_with_its_code(
    backend: ContainerBackend, spec: MakeSpec, shell_image: ShellImage, watch: Callable[[ContainerBackend], Watch]
) -> None:
    watching = watch(backend)
    first = await spawned(backend, spec(shell_image("echo hello; sleep 0.5; exit 3")))
    started = time.monotonic()

    told = await watching.next()
    took = time.monotonic() - started
    second = await spawned(backend, spec(shell_image("exit 4")))

    assert told == ComputeExit(agent_id=first, exit_code=3, log_tail="hello")
    assert took < 1.5
    assert await watching.next() == ComputeExit(agent_id=second, exit_code=4, log_tail="")


async def test_ends_that_nobody_watched_are_told_first(
    make_backend: MakeBackend,
    spec: MakeSpec,
    docker_client: docker.DockerClient,
    shell_image: ShellImage,
    watch: Callable[[ContainerBackend], Watch],
) -> None:
    image = shell_image("echo gone; exit 5")
    ids = [await spawned(make_backend(), spec(image), ended=docker_client) for _ in range(3)]

    watching = watch(make_backend())

    assert [await watching.next() for _ in ids] == [
        ComputeExit(agent_id=agent_id, exit_code=5, log_tail="gone") for agent_id in ids
    ]


async def test_an_end_whose_event_was_lost_is_found_by_the_next_look(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    shell_image: ShellImage,
    watch: Callable[[ContainerBackend], Watch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(container_exits, "LOOK_EVERY", 0.5)
    monkeypatch.setattr(container_exits.Exits, "_post", lambda *_: None)
    watching = watch(backend)

    agent_id = await spawned(backend, spec(shell_image("exit 6")))

    assert await watching.next() == ComputeExit(agent_id=agent_id, exit_code=6, log_tail="")


async def test_an_event_during_a_silent_spell_of_the_stream_is_not_lost(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    docker_client: docker.DockerClient,
    idle_image: str,
    watch: Callable[[ContainerBackend], Watch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(container_exits, "LOOK_EVERY", 0.3)
    watching = watch(backend)
    agent_id = await spawned(backend, spec(idle_image))
    await asyncio.sleep(1)  # the stream is opened anew three times in it: that is what is tested

    docker_client.api.remove_container((await backend.find(agent_id)).ref, force=True)  # type: ignore[union-attr]

    told = await watching.next()
    assert isinstance(told, ComputeExit)
    assert (told.agent_id, told.exit_code) == (agent_id, 137)


async def test_a_container_that_somebody_removes_is_told_as_such(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    docker_client: docker.DockerClient,
    shell_image: ShellImage,
    watch: Callable[[ContainerBackend], Watch],
) -> None:
    watching = watch(backend)
    wanted = spec(shell_image("sleep 60"))
    ref = await backend.spawn(wanted, quiet)

    docker_client.api.remove_container(ref.ref, force=True)

    told = await watching.next()
    assert isinstance(told, ComputeExit)
    assert (told.agent_id, told.exit_code) == (wanted.agent_id, 137)


async def test_a_teardown_s_own_doing_is_no_news_to_any_worker_of_the_engine(
    *,
    make_backend: MakeBackend,
    spec: MakeSpec,
    idle_image: str,
    no_shell_image: str,
    shell_image: ShellImage,
    watch: Callable[[ContainerBackend], Watch],
) -> None:
    one, other = make_backend(), make_backend()
    watching = [watch(one), watch(other)]
    torn_down = await spawned(one, spec(idle_image))
    await one.destroy(torn_down, FACTS, ScaleDownReason.IDLE)
    with pytest.raises(HatchwayError):
        await one.spawn(spec(no_shell_image, agent="inject"), quiet)

    later = await spawned(one, spec(shell_image("exit 7")))

    for each in watching:
        told = await each.next()
        assert isinstance(told, ComputeExit)
        assert told.agent_id == later


async def test_a_worker_that_was_started_later_redacts_what_the_first_one_passed_in(
    make_backend: MakeBackend, spec: MakeSpec, docker_client: docker.DockerClient, shell_image: ShellImage
) -> None:
    wanted = spec(
        shell_image('echo "plain $TOKEN and $URL"; printf "%s" "$TOKEN" | busybox base64'),
        env={"TOKEN": SECRET, "URL": f"https://user:{SECRET}@host/", "KICI_SCALER_CLAIM_CODE": "claim-code-123"},
        secret_values=frozenset({SECRET, "claim-code-123"}),
    )
    agent_id = await spawned(make_backend(), wanted, ended=docker_client)
    later = make_backend()

    async with aclosing(cast("Any", later.exits())) as exits:
        told = await anext(exits)
    shown = await later.logs(agent_id)

    assert told.log_tail == shown == "plain [redacted] and [redacted]\n[redacted]"


async def test_a_log_tail_is_the_end_of_it_and_bounded(
    backend: ContainerBackend, spec: MakeSpec, docker_client: docker.DockerClient, shell_image: ShellImage
) -> None:
    script = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); done; printf '\\033[31mred\\033[0m\\n'"
    agent_id = await spawned(backend, spec(shell_image(script)), ended=docker_client)

    async with aclosing(cast("Any", backend.exits())) as exits:
        told = await anext(exits)

    lines = told.log_tail.split("\n")
    assert len(lines) == 50
    assert lines[-2:] == ["line 299", "red"]
    assert len((await backend.logs(agent_id, lines=10)).split("\n")) == 10


async def test_an_agent_that_ran_out_of_memory_says_so(
    backend: ContainerBackend, spec: MakeSpec, docker_client: docker.DockerClient, python_image: str
) -> None:
    hog = backend.__class__("engine-under-test", None, spec(python_image).installation_id, agent=lambda: HOG)
    wanted = spec(python_image, agent="inject", mem_bytes=32 * 1024 * 1024)
    await spawned(hog, wanted, ended=docker_client)

    async with aclosing(cast("Any", backend.exits())) as exits:
        told = await anext(exits)
    await hog.close()

    assert told.exit_code == 137
    assert "out of memory (limit: 33554432 bytes)" in told.log_tail


HOG = b"held = []\nwhile True:\n    held.append(bytearray(4 << 20))\n"


@pytest.mark.parametrize("fault", ["cut", "hang"])
async def test_a_watch_ends_with_an_error_when_its_engine_goes_away(
    *,
    backend: ContainerBackend,
    proxied: ContainerBackend,
    engine_proxy: FaultProxy,
    spec: MakeSpec,
    idle_image: str,
    watch: Callable[[ContainerBackend], Watch],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    monkeypatch.setattr(container_exits, "LOOK_EVERY", 1.0)
    await spawned(backend, spec(idle_image))
    watching = watch(proxied)
    await asyncio.sleep(0.3)

    getattr(engine_proxy, fault)()

    assert isinstance(await watching.next(12), HatchwayError)
    engine_proxy.heal()
