"""What registries do wrong, and what the spawn then says: each row is a real answer of an engine to a real fault."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import docker
import pytest

from hatchway.backends.container import ContainerBackend
from hatchway.config.schema import PullPolicy
from hatchway.dev.registry import EmbeddedRegistry
from hatchway.errors import PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from hatchway.registry.auth import RegistryAuth
from tests.docker.backends.rig import MakeBackend, MakeSpec, RudeRegistry, Said, quiet
from tests.support.docker_fixtures import RegistryImages

Ours = Callable[[], list[dict[str, Any]]]

pytestmark = [pytest.mark.needs("registry"), pytest.mark.usefixtures("clean_images")]

WRONG = "a-wrong-password"
NO_SUCH_DIGEST = "sha256:" + "0" * 64


async def failure(backend: ContainerBackend, wanted: Any, within: float = 10) -> SpawnError:
    """How the spawn fails, which it must do in seconds."""
    with pytest.raises(SpawnError) as failed:
        await asyncio.wait_for(backend.spawn(wanted, quiet), within)
    return failed.value


@pytest.mark.scenario("S15")
@pytest.mark.parametrize(
    ("image", "consequence", "code"),
    [
        ("{host}/team/absent:1", PermanentSpawnError, SpawnCode.IMAGE_NOT_FOUND),
        ("{host}/team/agent:absent", PermanentSpawnError, SpawnCode.IMAGE_NOT_FOUND),
        (f"{{host}}/team/agent@{NO_SUCH_DIGEST}", PermanentSpawnError, SpawnCode.IMAGE_NOT_FOUND),
        # A repository may be called after any word that the table looks for.
        ("{host}/denied/toomanyrequests:unauthorized", PermanentSpawnError, SpawnCode.IMAGE_NOT_FOUND),
        ("{host}/team/foreign:1", PermanentSpawnError, SpawnCode.WRONG_ARCHITECTURE),
        ("{host}/team/elsewhere:1", PermanentSpawnError, SpawnCode.WRONG_ARCHITECTURE),
        ("{host}/team/corrupt:1", TransientSpawnError, SpawnCode.REGISTRY_UNREACHABLE),
        ("127.0.0.1:1/team/agent:1", TransientSpawnError, SpawnCode.REGISTRY_UNREACHABLE),
        ("no-such-host.invalid/team/agent:1", TransientSpawnError, SpawnCode.REGISTRY_UNREACHABLE),
    ],
)
async def test_an_image_that_cannot_be_had_fails_in_seconds_by_its_own_code(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    login: RegistryAuth,
    ours: Ours,
    image: str,
    consequence: type[SpawnError],
    code: SpawnCode,
) -> None:
    reference = image.format(host=registry.host)

    failed = await failure(backend, spec(reference, auth=login))

    assert (type(failed), failed.code) == (consequence, code), failed
    assert reference.rpartition("/")[2].partition(":")[0].partition("@")[0] in str(failed)
    assert ours() == []


@pytest.mark.scenario("S15")
@pytest.mark.parametrize("given", ["no credentials", "wrong password", "unknown user"])
async def test_a_refused_login_is_told_in_seconds_and_never_shows_the_password(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    registry_images: RegistryImages,
    login: RegistryAuth,
    given: str,
) -> None:
    auth = {
        "no credentials": None,
        "wrong password": replace(login, token=WRONG),
        "unknown user": replace(login, username="nobody"),
    }[given]

    failed = await failure(backend, spec(registry_images.agent, auth=auth))

    assert (type(failed), failed.code) == (PermanentSpawnError, SpawnCode.AUTH_DENIED)
    assert ("without credentials" if auth is None else "the job's credentials") in str(failed)
    assert WRONG not in str(failed)
    assert login.token not in str(failed)


@pytest.mark.parametrize(
    ("status", "code", "message", "consequence", "spawn_code"),
    [
        (403, "DENIED", "requested access to the resource is denied", PermanentSpawnError, SpawnCode.AUTH_DENIED),
        (429, "TOOMANYREQUESTS", "pull rate limit reached", TransientSpawnError, SpawnCode.RATE_LIMITED),
        (503, "UNAVAILABLE", "down for maintenance", TransientSpawnError, SpawnCode.REGISTRY_UNREACHABLE),
        (500, "UNKNOWN", "database is gone", TransientSpawnError, SpawnCode.REGISTRY_UNREACHABLE),
    ],
)
@pytest.mark.parametrize("with_credentials", [True, False])
async def test_a_registry_that_answers_with_an_error_is_understood(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    status: int,
    code: str,
    message: str,
    consequence: type[SpawnError],
    spawn_code: SpawnCode,
    with_credentials: bool,
) -> None:
    with RudeRegistry(status, code, message) as rude:
        auth = RegistryAuth(rude.host, "user", "password-of-the-job") if with_credentials else None
        failed = await failure(backend, spec(f"{rude.host}/team/agent:1", auth=auth))

    assert (type(failed), failed.code) == (consequence, spawn_code), failed


@pytest.mark.scenario("S38")
async def test_a_registry_that_limits_is_left_alone_until_its_time_and_holds_up_no_other(
    backend: ContainerBackend, spec: MakeSpec
) -> None:
    """Nobody asks it again meanwhile, for whatever image; an account of its own is counted for itself."""
    with (
        RudeRegistry(429, "TOOMANYREQUESTS", "retry-after: 8s, allowed: 1/minute") as limits,
        RudeRegistry(404, "MANIFEST_UNKNOWN", "manifest unknown") as other,
    ):
        first = await failure(backend, spec(f"{limits.host}/team/agent:1"))
        asked = len(limits.asked)
        second = await failure(backend, spec(f"{limits.host}/team/another:1"))
        left_alone = len(limits.asked) == asked
        elsewhere = await failure(backend, spec(f"{other.host}/team/agent:1"))
        account = RegistryAuth(limits.host, "user", "password-of-the-job")
        await failure(backend, spec(f"{limits.host}/team/agent:1", auth=account))
        asked_for_the_account = len(limits.asked) > asked
        assert isinstance(second, TransientSpawnError)
        assert second.retry_after is not None
        asked = len(limits.asked)
        await asyncio.sleep(second.retry_after.total_seconds())
        await failure(backend, spec(f"{limits.host}/team/another:1"))
        asked_in_time = len(limits.asked) > asked

    assert isinstance(first, TransientSpawnError)
    assert (first.code, first.retry_after) == (SpawnCode.RATE_LIMITED, timedelta(seconds=8))
    assert second.code is SpawnCode.RATE_LIMITED
    assert elsewhere.code is SpawnCode.IMAGE_NOT_FOUND
    assert (left_alone, asked_for_the_account, asked_in_time) == (True, True, True)


async def test_a_registry_that_is_down_is_told_from_an_engine_that_is(
    backend: ContainerBackend,
    spec: MakeSpec,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    login: RegistryAuth,
) -> None:
    registry.stop()

    failed = await failure(backend, spec(registry_images.agent, auth=login))

    assert (type(failed), failed.code) == (TransientSpawnError, SpawnCode.REGISTRY_UNREACHABLE)


@pytest.mark.scenario("S07")
@pytest.mark.parametrize("with_credentials", [True, False])
async def test_a_registry_that_hangs_is_given_up_and_stops_nobody_else(
    *,
    make_backend: MakeBackend,
    spec: MakeSpec,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    login: RegistryAuth,
    idle_image: str,
    with_credentials: bool,
) -> None:
    backend = make_backend(call_timeout=timedelta(seconds=3), pull_stall=timedelta(seconds=3))
    wanted = spec(registry_images.agent, auth=login if with_credentials else None)
    registry.hang()

    hanging = asyncio.create_task(failure(backend, wanted, within=12))
    await asyncio.sleep(0)
    started = time.monotonic()
    await backend.spawn(spec(idle_image), quiet)
    other_took = time.monotonic() - started
    failed = await hanging

    assert (type(failed), failed.code) == (TransientSpawnError, SpawnCode.REGISTRY_UNREACHABLE), failed
    assert other_took < 3


@pytest.mark.scenario("S18")
async def test_a_spawn_that_is_cancelled_while_it_pulls_leaves_nothing(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    login: RegistryAuth,
    ours: Ours,
) -> None:
    asking = asyncio.Event()
    registry.hang()
    spawning = asyncio.create_task(backend.spawn(spec(registry_images.agent, auth=login), lambda message: asking.set()))
    await asking.wait()

    spawning.cancel()
    started = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await spawning

    assert time.monotonic() - started < 1
    assert ours() == []


async def test_a_pull_tells_people_how_far_it_is(
    backend: ContainerBackend, spec: MakeSpec, registry_images: RegistryImages, login: RegistryAuth
) -> None:
    said = Said()

    await backend.spawn(spec(registry_images.agent, auth=login), said)

    assert any("asking 127.0.0.1" in line for line in said.lines)
    assert any("1/1 layers" in line for line in said.lines)
    assert said.lines[-1].startswith("starting ")


@pytest.mark.scenario("S29")
@pytest.mark.scenario("S30")
@pytest.mark.parametrize("form", ["{name}:1", "{name}@{digest}", "{name}:1@{digest}", "{name}:moved@{digest}"])
async def test_a_private_image_is_found_by_tag_by_digest_and_by_both(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    login: RegistryAuth,
    docker_client: docker.DockerClient,
    form: str,
) -> None:
    name, digest = f"{registry.host}/team/agent", registry.digest("team/agent:1")

    ref = await backend.spawn(spec(form.format(name=name, digest=digest), auth=login), quiet)

    image = docker_client.containers.get(ref.ref).image
    assert image is not None
    assert f"{name}@{digest}" in image.attrs["RepoDigests"]


@pytest.mark.scenario("S31")
async def test_the_docker_login_of_the_worker_s_own_user_serves_no_job(
    *,
    make_backend: MakeBackend,
    spec: MakeSpec,
    registry_images: RegistryImages,
    login: RegistryAuth,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auths = {login.registry_host: {"username": login.username, "password": login.token}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    failed = await failure(make_backend(), spec(registry_images.agent))

    assert failed.code == SpawnCode.AUTH_DENIED


@pytest.mark.scenario("S31")
async def test_the_job_s_login_is_used_whatever_the_worker_s_own_user_has(
    *,
    make_backend: MakeBackend,
    spec: MakeSpec,
    registry_images: RegistryImages,
    login: RegistryAuth,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auths = {login.registry_host: {"username": login.username, "password": WRONG}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    backend = make_backend()
    wanted = spec(registry_images.agent, auth=login)

    ref = await backend.spawn(wanted, quiet)

    assert await backend.find(wanted.agent_id) == ref


@pytest.mark.parametrize(
    ("policy", "cached", "registry_up", "outcome"),
    [
        (PullPolicy.IF_NOT_PRESENT, True, False, None),
        (PullPolicy.ALWAYS, True, False, SpawnCode.REGISTRY_UNREACHABLE),
        (PullPolicy.NEVER, True, False, None),
        (PullPolicy.NEVER, False, True, SpawnCode.IMAGE_NOT_FOUND),
    ],
)
async def test_a_pull_policy_decides_whether_the_registry_is_asked(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    docker_client: docker.DockerClient,
    policy: PullPolicy,
    cached: bool,
    registry_up: bool,
    outcome: SpawnCode | None,
) -> None:
    if cached:
        # As an operator would load it: no job's credentials were involved.
        user = {"username": registry.login.username, "password": registry.login.password}
        docker_client.images.pull(registry_images.agent, auth_config=user)
    if not registry_up:
        registry.stop()
    wanted = spec(registry_images.agent, pull_policy=policy)

    if outcome is None:
        ref = await backend.spawn(wanted, quiet)
        assert await backend.find(wanted.agent_id) == ref
    else:
        assert (await failure(backend, wanted)).code == outcome


async def test_a_cached_image_of_the_wrong_architecture_is_not_run(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    docker_client: docker.DockerClient,
) -> None:
    user = {"username": registry.login.username, "password": registry.login.password}
    docker_client.api.pull(registry_images.wrong_architecture, auth_config=user)

    failed = await failure(backend, spec(registry_images.wrong_architecture, pull_policy=PullPolicy.NEVER))

    assert (type(failed), failed.code) == (PermanentSpawnError, SpawnCode.WRONG_ARCHITECTURE)
