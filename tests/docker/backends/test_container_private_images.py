"""An image that came by one job's credentials opens to nobody who has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import docker
import pytest

from hatchway.backends.container_private import LABEL, PREFIX
from hatchway.config.schema import PullPolicy
from hatchway.dev import images
from hatchway.dev.registry import EmbeddedRegistry
from hatchway.errors import PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from hatchway.model import ScaleDownReason
from hatchway.registry.auth import RegistryAuth
from tests.docker.backends.rig import FACTS, MakeBackend, MakeSpec, Said, quiet
from tests.support.docker_fixtures import RegistryImages

pytestmark = [pytest.mark.needs("registry"), pytest.mark.usefixtures("clean_images")]


@pytest.fixture
async def cached(
    make_backend: MakeBackend, spec: MakeSpec, registry_images: RegistryImages, login: RegistryAuth
) -> str:
    """A private image that a job with credentials has brought to the engine, and is done with."""
    worker, wanted = make_backend(), spec(registry_images.agent, auth=login)
    await worker.spawn(wanted, quiet)
    await worker.destroy(wanted.agent_id, FACTS, ScaleDownReason.JOB_COMPLETE)
    return registry_images.agent


def marks(client: docker.DockerClient) -> tuple[list[Any], list[str]]:
    volumes = client.volumes.list(filters={"label": LABEL})
    tags = [t for i in client.api.images() for t in i.get("RepoTags") or [] if t.startswith(f"{PREFIX}/")]
    return volumes, tags


@pytest.mark.parametrize("given", ["no credentials", "wrong password"])
@pytest.mark.parametrize("policy", list(PullPolicy))
async def test_a_cached_private_image_serves_nobody_whom_the_registry_would_refuse(
    *, make_backend: MakeBackend, spec: MakeSpec, cached: str, login: RegistryAuth, given: str, policy: PullPolicy
) -> None:
    auth = None if given == "no credentials" else replace(login, token="wrong")
    worker_after_a_restart = make_backend()

    with pytest.raises(PermanentSpawnError) as refused:
        await worker_after_a_restart.spawn(spec(cached, auth=auth, pull_policy=policy), quiet)

    assert refused.value.code == SpawnCode.AUTH_DENIED


@pytest.mark.parametrize("lost", ["the volume", "the tag"])
async def test_either_mark_alone_keeps_a_private_image_private(
    *, make_backend: MakeBackend, spec: MakeSpec, cached: str, docker_client: docker.DockerClient, lost: str
) -> None:
    volumes, tags = marks(docker_client)
    if lost == "the volume":
        volumes[0].remove()  # docker volume prune, or a host restored without its volumes
    else:
        docker_client.api.remove_image(tags[0])  # a worker killed between its pull and its mark leaves this

    with pytest.raises(PermanentSpawnError) as refused:
        await make_backend().spawn(spec(cached), quiet)

    assert refused.value.code == SpawnCode.AUTH_DENIED


async def test_a_prune_of_all_unused_volumes_and_images_opens_no_private_image_in_use(
    *,
    make_backend: MakeBackend,
    spec: MakeSpec,
    registry_images: RegistryImages,
    login: RegistryAuth,
    docker_client: docker.DockerClient,
) -> None:
    worker = make_backend()
    await worker.spawn(spec(registry_images.agent, auth=login), quiet)
    volumes, _ = marks(docker_client)
    volumes[0].remove()
    # What `docker image prune --all` does to an image in use, without touching anybody else's images here.
    with pytest.raises(docker.errors.APIError, match="conflict"):
        docker_client.api.remove_image(str(docker_client.images.get(registry_images.agent).id))

    with pytest.raises(PermanentSpawnError) as refused:
        await make_backend().spawn(spec(registry_images.agent), quiet)

    assert refused.value.code == SpawnCode.AUTH_DENIED


async def test_a_cached_private_image_serves_who_may_read_it(
    *, make_backend: MakeBackend, spec: MakeSpec, cached: str, login: RegistryAuth
) -> None:
    backend, wanted = make_backend(), spec(cached, auth=login)
    said = Said()

    ref = await backend.spawn(wanted, said)

    assert await backend.find(wanted.agent_id) == ref
    assert not any("pulling" in line for line in said.lines)


async def test_credentials_that_nobody_can_check_open_nothing(
    *, make_backend: MakeBackend, spec: MakeSpec, cached: str, login: RegistryAuth, registry: EmbeddedRegistry
) -> None:
    registry.stop()

    for auth in (login, None):
        with pytest.raises(SpawnError) as refused:
            await make_backend().spawn(spec(cached, auth=auth), quiet)
        assert (type(refused.value), refused.value.code) == (TransientSpawnError, SpawnCode.REGISTRY_UNREACHABLE)


async def test_an_image_that_no_job_s_credentials_brought_is_used_without_asking(
    *,
    make_backend: MakeBackend,
    spec: MakeSpec,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    docker_client: docker.DockerClient,
) -> None:
    user = {"username": registry.login.username, "password": registry.login.password}
    docker_client.images.pull(registry_images.agent, auth_config=user)
    registry.stop()
    backend, wanted = make_backend(), spec(registry_images.agent)

    ref = await backend.spawn(wanted, quiet)

    assert await backend.find(wanted.agent_id) == ref


async def test_the_mark_itself_opens_no_private_image(
    *, make_backend: MakeBackend, spec: MakeSpec, cached: str, docker_client: docker.DockerClient
) -> None:
    _, tags = marks(docker_client)

    for name in (tags[0], f"docker.io/{tags[0]}"):
        with pytest.raises(PermanentSpawnError, match="only marks private images"):
            await make_backend().spawn(spec(name), quiet)


async def test_a_digest_under_another_repository_s_name_opens_no_private_image(
    *, make_backend: MakeBackend, spec: MakeSpec, cached: str, registry: EmbeddedRegistry
) -> None:
    digest = registry.digest("team/agent:1")

    with pytest.raises(PermanentSpawnError) as refused:
        await make_backend().spawn(spec(f"{registry.host}/team/public@{digest}"), quiet)

    assert refused.value.code == SpawnCode.AUTH_DENIED


async def test_versions_that_a_tag_left_behind_go_when_the_next_one_comes(
    *,
    make_backend: MakeBackend,
    spec: MakeSpec,
    registry: EmbeddedRegistry,
    login: RegistryAuth,
    docker_client: docker.DockerClient,
) -> None:
    worker = make_backend()
    reference = ""
    for version in range(3):
        image = replace(images.busybox_image(), entrypoint=("/bin/sleep", "60"), env={"VERSION": str(version)})
        reference = registry.put("team/moving:latest", image)
        wanted = spec(reference, auth=login, pull_policy=PullPolicy.ALWAYS)
        await worker.spawn(wanted, quiet)
        await worker.destroy(wanted.agent_id, FACTS, ScaleDownReason.JOB_COMPLETE)

    _, tags = marks(docker_client)

    assert len(tags) == 1
    assert tags[0] in docker_client.images.get(reference).tags
