"""An image may name a stop signal that there is not: engines start its containers, and refuse to signal them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import docker
import pytest

from hatchway.backends.base import Gone
from hatchway.backends.container import ContainerBackend
from hatchway.model import ScaleDownReason
from tests.docker.backends.rig import FACTS, MakeSpec, ShellImage, quiet

Ours = Callable[[], list[dict[str, Any]]]


def _with_stop_signal(saved: bytes, name: str, signal: str) -> bytes:
    """An archive as `docker save` writes it, of the same image under another name, and with this stop signal."""
    made = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(saved)) as old, tarfile.open(fileobj=made, mode="w") as new:

        def content(member: str) -> bytes:
            file = old.extractfile(member)
            assert file is not None
            return file.read()

        def add(member: str, data: bytes) -> None:
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            new.addfile(entry, io.BytesIO(data))

        (manifest,) = json.loads(content("manifest.json"))
        image = json.loads(content(manifest["Config"]))
        image["config"]["StopSignal"] = signal
        add("config.json", json.dumps(image).encode())
        for layer in manifest["Layers"]:
            add(layer, content(layer))
        wanted = {"Config": "config.json", "RepoTags": [name], "Layers": manifest["Layers"]}
        add("manifest.json", json.dumps([wanted]).encode())
    return made.getvalue()


@pytest.fixture
def unstoppable_image(docker_client: docker.DockerClient, shell_image: ShellImage, installation: str) -> Iterator[str]:
    """Its agent ends at SIGTERM, and its image asks for a signal that no engine knows."""
    name = f"hatchway-test/stop-signal:{installation}"
    image = shell_image("trap 'exit 0' TERM; while true; do sleep 0.05; done")
    saved = b"".join(docker_client.images.get(image).save(named=True))
    docker_client.images.load(_with_stop_signal(saved, name, "BOGUS"))
    yield name
    docker_client.api.remove_image(name, force=True)


async def test_an_image_cannot_keep_its_container_by_a_stop_signal_that_there_is_not(
    backend: ContainerBackend, spec: MakeSpec, docker_client: docker.DockerClient, unstoppable_image: str, ours: Ours
) -> None:
    wanted = spec(unstoppable_image, stop_grace=timedelta(seconds=30))
    ref = await backend.spawn(wanted, quiet)
    assert docker_client.api.inspect_container(ref.ref)["Config"]["StopSignal"] == "BOGUS"

    answer = await backend.destroy(wanted.agent_id, FACTS, ScaleDownReason.IDLE)

    assert answer == Gone()
    assert ours() == []
