"""Containers that bear an agent's labels and are none: whoever commits an agent's container has them in the image."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any, cast

import docker
import pytest

from hatchway.backends.base import Gone
from hatchway.backends.container import ContainerBackend
from hatchway.model import ComputeExit, ScaleDownReason
from tests.docker.backends.rig import FACTS, MakeSpec, quiet

COPIES = "hatchway-test/copy"


@pytest.fixture
def copy_of(docker_client: docker.DockerClient, installation: str) -> Iterator[Any]:
    """Runs a copy of a container, with all its labels, under a name of the engine's choice."""
    made: list[str] = []

    def run(container_id: str, script: str) -> str:
        image = docker_client.api.commit(container_id, repository=COPIES, tag=installation)["Id"]
        made.append(str(docker_client.containers.run(image, entrypoint=["/bin/sh", "-c", script], detach=True).id))
        return made[-1]

    yield run
    for container_id in made:
        with contextlib.suppress(docker.errors.NotFound):  # taken for the agent, which the test has said by then
            docker_client.api.remove_container(container_id, force=True)
    if made:
        docker_client.api.remove_image(f"{COPIES}:{installation}", force=True)


async def test_the_end_of_a_copy_is_no_agent_s_end(
    backend: ContainerBackend, spec: MakeSpec, idle_image: str, docker_client: docker.DockerClient, copy_of: Any
) -> None:
    copied, other = spec(idle_image), spec(idle_image)
    ref, end = await backend.spawn(copied, quiet), await backend.spawn(other, quiet)
    before = copy_of(ref.ref, "exit 3")  # found by the look
    await asyncio.to_thread(docker_client.api.wait, before)

    async with aclosing(cast("Any", backend.exits())) as exits:
        next_end = asyncio.ensure_future(anext(exits))
        await asyncio.sleep(0)
        during = copy_of(ref.ref, "exit 3")  # told by the stream
        await asyncio.to_thread(docker_client.api.wait, during)
        docker_client.api.kill(end.ref)
        told: ComputeExit = await asyncio.wait_for(next_end, 60)

    assert told.agent_id == other.agent_id


async def test_a_copy_is_nobody_s_compute_and_stays(
    backend: ContainerBackend, spec: MakeSpec, idle_image: str, docker_client: docker.DockerClient, copy_of: Any
) -> None:
    wanted = spec(idle_image)
    ref = await backend.spawn(wanted, quiet)
    copy = copy_of(ref.ref, "exec sleep 3600")

    owned = [one.ref.ref async for one in backend.owned()]
    found = await backend.find(wanted.agent_id)
    gone = await backend.destroy(wanted.agent_id, FACTS, ScaleDownReason.IDLE)

    assert owned == [ref.ref]
    assert found == ref
    assert gone == Gone()
    assert await backend.find(wanted.agent_id) is None
    assert docker_client.api.inspect_container(copy)["State"]["Running"]


async def test_a_container_that_somebody_renamed_is_its_agent_s_still(
    *, backend: ContainerBackend, spec: MakeSpec, idle_image: str, docker_client: docker.DockerClient, copy_of: Any
) -> None:
    """Whoever looks without a row has its labels only, and a copy has them too."""
    wanted = spec(idle_image)
    ref = await backend.spawn(wanted, quiet)
    copy = copy_of(ref.ref, "exec sleep 3600")
    docker_client.api.rename(ref.ref, f"kept-{wanted.agent_id}")

    owned = [one.ref.ref async for one in backend.owned()]
    found, again = await backend.find(wanted.agent_id), await backend.spawn(wanted, quiet)
    gone = await backend.destroy(wanted.agent_id, FACTS, ScaleDownReason.IDLE)

    assert owned == [ref.ref]
    assert found == again == ref
    assert gone == Gone()
    with pytest.raises(docker.errors.NotFound):
        docker_client.api.inspect_container(ref.ref)
    assert docker_client.api.inspect_container(copy)["State"]["Running"]


async def test_a_renamed_container_whose_image_is_gone_may_be_a_copy_and_stays(
    backend: ContainerBackend, spec: MakeSpec, idle_image: str, installation: str, docker_client: docker.DockerClient
) -> None:
    blank = docker_client.api.create_container(idle_image)["Id"]
    name = f"{COPIES}:{installation}"
    image = docker_client.api.commit(blank, repository=COPIES, tag=installation, message=installation)["Id"]
    docker_client.api.remove_container(blank)
    wanted = spec(name)
    ref = await backend.spawn(wanted, quiet)
    docker_client.api.kill(ref.ref)
    docker_client.api.wait(ref.ref)
    docker_client.api.rename(ref.ref, f"kept-{wanted.agent_id}")

    docker_client.api.remove_image(name, force=True)

    with pytest.raises(docker.errors.ImageNotFound):
        docker_client.images.get(image)
    assert [one async for one in backend.owned()] == []
    assert await backend.find(wanted.agent_id) is None


@pytest.mark.parametrize("found_by", ["the look", "the stream", "the stream, when it is removed"])
async def test_the_end_of_a_renamed_container_is_told(
    backend: ContainerBackend, spec: MakeSpec, idle_image: str, docker_client: docker.DockerClient, found_by: str
) -> None:
    wanted, first = spec(idle_image), spec(idle_image)
    ref, ends_first = await backend.spawn(wanted, quiet), await backend.spawn(first, quiet)
    docker_client.api.rename(ref.ref, f"kept-{wanted.agent_id}")

    def end() -> None:
        docker_client.api.kill(ref.ref)
        docker_client.api.wait(ref.ref)

    async with aclosing(cast("Any", backend.exits())) as exits:
        if found_by == "the look":
            await asyncio.to_thread(end)
        else:
            docker_client.api.kill(ends_first.ref)
            assert (await asyncio.wait_for(anext(exits), 60)).agent_id == first.agent_id
            if found_by == "the stream":
                await asyncio.to_thread(end)
            else:
                await asyncio.to_thread(docker_client.api.remove_container, ref.ref, force=True)
        told: ComputeExit = await asyncio.wait_for(anext(exits), 60)

    assert (told.agent_id, told.exit_code) == (wanted.agent_id, 137)


async def test_while_an_agent_s_own_container_is_there_none_with_labels_like_its_own_speaks_for_it(
    backend: ContainerBackend, spec: MakeSpec, idle_image: str, docker_client: docker.DockerClient
) -> None:
    """Tools that duplicate a container give the new one its labels."""
    wanted, other = spec(idle_image), spec(idle_image)
    ref, end = await backend.spawn(wanted, quiet), await backend.spawn(other, quiet)
    labels = docker_client.api.inspect_container(ref.ref)["Config"]["Labels"]
    duplicate = str(docker_client.containers.run(idle_image, labels=labels, detach=True).id)
    try:
        found = await backend.find(wanted.agent_id)
        docker_client.api.kill(duplicate)
        docker_client.api.wait(duplicate)
        docker_client.api.kill(end.ref)
        async with aclosing(cast("Any", backend.exits())) as exits:
            told: ComputeExit = await asyncio.wait_for(anext(exits), 60)
        await backend.destroy(wanted.agent_id, FACTS, ScaleDownReason.IDLE)

        assert found == ref
        assert told.agent_id == other.agent_id
        assert docker_client.api.inspect_container(duplicate)["State"]["Status"] == "exited"
    finally:
        docker_client.api.remove_container(duplicate, force=True)


async def test_a_teardown_finds_a_renamed_container_by_the_id_on_the_row(
    backend: ContainerBackend, spec: MakeSpec, idle_image: str, docker_client: docker.DockerClient
) -> None:
    wanted = spec(idle_image)
    ref = await backend.spawn(wanted, quiet)
    docker_client.api.rename(ref.ref, f"kept-{wanted.agent_id}")

    facts = FACTS.model_copy(update={"compute": ref})
    gone = await backend.destroy(wanted.agent_id, facts, ScaleDownReason.IDLE)

    assert gone == Gone()
    with pytest.raises(docker.errors.NotFound):
        docker_client.api.inspect_container(ref.ref)
