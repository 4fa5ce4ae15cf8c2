"""A teardown that is confirmed, or says why it is not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import docker
import pytest

from hatchway.backends.base import Gone
from hatchway.backends.container import ContainerBackend
from hatchway.errors import DestroyError
from hatchway.model import ScaleDownReason
from tests.docker.backends.rig import FACTS, MakeBackend, MakeSpec, ShellImage, quiet
from tests.support.proxy import FaultProxy

Ours = Callable[[], list[dict[str, Any]]]
IDLE = ScaleDownReason.IDLE


async def printed(client: docker.DockerClient, container_id: str, text: str) -> None:
    """Wait until the agent has printed this."""
    async with asyncio.timeout(60):
        while text not in client.api.logs(container_id).decode():
            await asyncio.sleep(0.02)


async def test_an_agent_is_told_to_stop_and_may_finish(
    backend: ContainerBackend, spec: MakeSpec, docker_client: docker.DockerClient, shell_image: ShellImage
) -> None:
    # What the agent says at its end goes to a volume of the engine: its own log goes with it.
    wanted = spec(shell_image("trap 'sleep 0.3; exit 0' TERM; echo ready; while true; do sleep 0.05; done"))
    ref = await backend.spawn(wanted, quiet)
    await printed(docker_client, ref.ref, "ready")
    died = docker_client.events(decode=True, filters={"container": ref.ref, "event": "die"})

    started = time.monotonic()
    answer = await backend.destroy(wanted.agent_id, FACTS, IDLE)
    took = time.monotonic() - started
    code = (await asyncio.to_thread(next, died))["Actor"]["Attributes"]["exitCode"]
    died.close()

    assert answer == Gone()
    assert code == "0"
    assert 0.3 <= took < 3


async def test_a_grace_that_began_in_one_round_is_not_granted_anew_in_the_next(
    backend: ContainerBackend,
    spec: MakeSpec,
    docker_client: docker.DockerClient,
    shell_image: ShellImage,
) -> None:
    wanted = spec(
        shell_image("trap '' TERM; echo ready; while true; do sleep 1; done"), stop_grace=timedelta(seconds=2)
    )
    ref = await backend.spawn(wanted, quiet)
    await printed(docker_client, ref.ref, "ready")
    started = time.monotonic()

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(backend.destroy(wanted.agent_id, FACTS, IDLE), 1.2)
    await backend.destroy(wanted.agent_id, FACTS, IDLE)

    assert 1.9 <= time.monotonic() - started < 2.9


async def test_anonymous_volumes_go_with_the_container_and_named_ones_stay(
    backend: ContainerBackend, spec: MakeSpec, docker_client: docker.DockerClient, shell_image: ShellImage
) -> None:
    wanted = spec(shell_image("sleep 60", "VOLUME /data"))
    ref = await backend.spawn(wanted, quiet)
    volume = docker_client.api.inspect_container(ref.ref)["Mounts"][0]["Name"]

    await backend.destroy(wanted.agent_id, FACTS, IDLE)

    assert volume not in [v.name for v in docker_client.volumes.list()]


@pytest.mark.parametrize("state", ["created", "paused", "exited", "stopping already"])
async def test_a_container_goes_from_every_state(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    docker_client: docker.DockerClient,
    idle_image: str,
    ours: Ours,
    state: str,
) -> None:
    wanted = spec(idle_image, stop_grace=timedelta(seconds=2))
    ref = await backend.spawn(wanted, quiet)
    if state == "created":
        labels = docker_client.api.inspect_container(ref.ref)["Config"]["Labels"]
        docker_client.api.remove_container(ref.ref, force=True)
        docker_client.containers.create(idle_image, name=f"hatchway-{wanted.agent_id}", labels=labels)
    elif state == "paused":
        docker_client.api.pause(ref.ref)
    elif state == "exited":
        docker_client.api.kill(ref.ref)
        docker_client.api.wait(ref.ref)
    else:
        docker_client.api.rename(ref.ref, f"hatchway-stopping-{wanted.agent_id}")

    answer = await backend.destroy(wanted.agent_id, FACTS, IDLE)

    assert answer == Gone()
    assert ours() == []


@pytest.mark.scenario("S04")
async def test_a_teardown_beside_somebody_else_s_removal_is_confirmed(
    backend: ContainerBackend, spec: MakeSpec, docker_client: docker.DockerClient, idle_image: str, ours: Ours
) -> None:
    for _ in range(5):
        wanted = spec(idle_image, stop_grace=timedelta(0))
        ref = await backend.spawn(wanted, quiet)
        other = asyncio.create_task(asyncio.to_thread(docker_client.api.remove_container, ref.ref, force=True))

        answer = await backend.destroy(wanted.agent_id, FACTS, IDLE)

        with contextlib.suppress(docker.errors.APIError):  # it lost the race, and says so
            await other
        assert answer == Gone()
    assert ours() == []


@pytest.mark.scenario("S04")
@pytest.mark.parametrize("fault", ["cut", "hang"])
async def test_a_teardown_is_not_confirmed_until_the_engine_confirms_it(
    *,
    backend: ContainerBackend,
    proxied: ContainerBackend,
    spec: MakeSpec,
    engine_proxy: FaultProxy,
    idle_image: str,
    ours: Ours,
    fault: str,
) -> None:
    wanted = spec(idle_image)
    await backend.spawn(wanted, quiet)  # whose start may take longer than a call through the proxy has
    getattr(engine_proxy, fault)()

    started = time.monotonic()
    with pytest.raises(DestroyError, match="not confirmed gone"):
        await proxied.destroy(wanted.agent_id, FACTS, IDLE)
    took = time.monotonic() - started
    engine_proxy.heal()

    assert took < 8
    assert len(ours()) == 1
    assert await proxied.destroy(wanted.agent_id, FACTS, IDLE) == Gone()


async def test_a_spawn_does_not_take_over_a_container_that_is_being_torn_down(
    make_backend: MakeBackend, spec: MakeSpec, docker_client: docker.DockerClient, shell_image: ShellImage, ours: Ours
) -> None:
    wanted = spec(shell_image("trap '' TERM; echo ready; while true; do sleep 1; done"))
    worker, late = make_backend(), make_backend()
    ref = await worker.spawn(wanted, quiet)
    await printed(docker_client, ref.ref, "ready")
    tearing_down = asyncio.create_task(worker.destroy(wanted.agent_id, FACTS, IDLE))
    async with asyncio.timeout(5):
        while ours()[0]["Names"] != [f"/hatchway-stopping-{wanted.agent_id}"]:
            await asyncio.sleep(0.02)

    with pytest.raises(Exception, match="is being removed"):
        await late.spawn(wanted, quiet)

    assert await tearing_down == Gone()
    assert ours() == []
