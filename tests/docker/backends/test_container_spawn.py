"""What a spawn makes, takes over, refuses, and leaves behind when it fails."""

from __future__ import annotations

import asyncio
import io
import tarfile
import threading
from collections.abc import Callable
from typing import Any

import docker
import pytest

from hatchway.backends.base import Gone
from hatchway.backends.container import ContainerBackend
from hatchway.backends.container_entry import AGENT_PATH, agent_source
from hatchway.errors import PermanentSpawnError, SpawnCode
from hatchway.model import ComputeRef, ScaleDownReason
from tests.contract.backend import facts_for
from tests.docker.backends.rig import HOST_ID, LocalImage, MakeBackend, MakeSpec, quiet

Ours = Callable[[], list[dict[str, Any]]]
MIB = 1024 * 1024


def inspected(client: docker.DockerClient, ref: ComputeRef) -> dict[str, Any]:
    found: dict[str, Any] = client.api.inspect_container(ref.ref)
    return found


async def test_a_container_carries_what_finds_it_again(
    backend: ContainerBackend, spec: MakeSpec, docker_client: docker.DockerClient, idle_image: str, installation: str
) -> None:
    wanted = spec(idle_image, job_id="job-1", run_id="run-1")

    ref = await backend.spawn(wanted, quiet)

    found = inspected(docker_client, ref)
    assert found["Name"] == f"/hatchway-{wanted.agent_id}"
    assert ref.backend == "container"
    assert ref.host_id == HOST_ID
    assert found["Config"]["Labels"] == {
        "kici-managed": "true",
        "kici-scaler-name": "docker",
        "kici-agent-id": wanted.agent_id,
        "kici-labels": "linux,kici:os:linux",
        "kici-bound-job-id": "job-1",
        "kici-run-id": "run-1",
        "hatchway.installation": installation,
        "hatchway.image": idle_image,
        "hatchway.stop-grace-seconds": "5",
        "hatchway.secret-env": "",
    }
    assert await backend.find(wanted.agent_id) == ref
    assert [(o.agent_id, o.ref) async for o in backend.owned()] == [(wanted.agent_id, ref)]


async def test_an_agent_runs_walled_in(
    backend: ContainerBackend, spec: MakeSpec, docker_client: docker.DockerClient, idle_image: str
) -> None:
    wanted = spec(idle_image, mcpu=500, mem_bytes=64 * MIB, cap_add=["NET_BIND_SERVICE"])

    ref = await backend.spawn(wanted, quiet)

    walls = inspected(docker_client, ref)["HostConfig"]
    assert walls["CapDrop"] == ["ALL"]
    assert [c.removeprefix("CAP_") for c in walls["CapAdd"]] == ["NET_BIND_SERVICE"]
    assert walls["SecurityOpt"] == ["no-new-privileges:true"]
    assert walls["Init"] is True
    assert walls["PidsLimit"] == 4096
    assert walls["NanoCpus"] == 500_000_000
    assert (walls["Memory"], walls["MemorySwap"]) == (64 * MIB, 64 * MIB)
    assert walls["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "1"}}
    assert walls["RestartPolicy"]["Name"] in ("", "no")
    assert not walls["Binds"]
    assert not walls["Privileged"]
    assert walls["ExtraHosts"] == ["host.docker.internal:host-gateway"]


async def test_an_agent_sees_its_own_environment_and_nothing_of_the_worker(
    backend: ContainerBackend,
    spec: MakeSpec,
    docker_client: docker.DockerClient,
    idle_image: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:password@proxy.invalid")
    wanted = spec(idle_image, env={"KICI_AGENT_ID": "a", "LINES": "one\ntwo", "EMPTY": ""})

    ref = await backend.spawn(wanted, quiet)

    env = dict(e.partition("=")[::2] for e in inspected(docker_client, ref)["Config"]["Env"])
    env.pop("PATH")
    assert env == {"KICI_AGENT_ID": "a", "LINES": "one\ntwo", "EMPTY": ""}


async def test_the_engine_s_socket_is_inside_only_where_the_label_set_says_so(
    backend: ContainerBackend, spec: MakeSpec, docker_client: docker.DockerClient, idle_image: str
) -> None:
    ref = await backend.spawn(spec(idle_image, container_socket=True), quiet)

    assert inspected(docker_client, ref)["HostConfig"]["Binds"] == ["/var/run/docker.sock:/var/run/docker.sock"]


@pytest.mark.scenario("S02")
@pytest.mark.parametrize("state", ["created", "running", "exited"])
async def test_a_second_spawn_takes_over_the_first_one_s_container(
    *,
    make_backend: MakeBackend,
    spec: MakeSpec,
    docker_client: docker.DockerClient,
    idle_image: str,
    ours: Ours,
    state: str,
) -> None:
    wanted = spec(idle_image)
    first = await make_backend().spawn(wanted, quiet)
    if state == "created":
        labels = inspected(docker_client, first)["Config"]["Labels"]
        docker_client.api.remove_container(first.ref, force=True)
        docker_client.containers.create(idle_image, name=f"hatchway-{wanted.agent_id}", labels=labels)
    elif state == "exited":
        docker_client.api.kill(first.ref)
        docker_client.api.wait(first.ref)

    second = await make_backend().spawn(wanted, quiet)

    assert [c["Id"] for c in ours()] == [second.ref]
    assert inspected(docker_client, second)["State"]["Status"] == ("exited" if state == "exited" else "running")
    assert state == "created" or second == first


@pytest.mark.scenario("S02")
async def test_spawns_at_once_from_two_workers_make_one_container(
    make_backend: MakeBackend, spec: MakeSpec, idle_image: str, ours: Ours
) -> None:
    workers = [make_backend(), make_backend()]
    wanted = spec(idle_image)

    refs = await asyncio.gather(*(worker.spawn(wanted, quiet) for worker in workers for _ in range(3)))

    assert len(set(refs)) == 1
    assert [c["Id"] for c in ours()] == [refs[0].ref]


async def test_a_name_that_a_stranger_took_is_left_to_the_stranger(
    backend: ContainerBackend, spec: MakeSpec, docker_client: docker.DockerClient, idle_image: str
) -> None:
    wanted = spec(idle_image)
    stranger = docker_client.containers.create(idle_image, name=f"hatchway-{wanted.agent_id}")

    try:
        with pytest.raises(Exception, match=r"the name hatchway-.* is taken") as refused:
            await backend.spawn(wanted, quiet)
        stranger.reload()
    finally:
        stranger.remove(force=True)

    assert refused.value.code == SpawnCode.DAEMON_UNAVAILABLE  # type: ignore[attr-defined]
    assert stranger.status == "created"


REFUSED_SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "IPv6 gateway in isolation": (
        {"network_isolation": True, "env": {"KICI_ORCHESTRATOR_URL": "http://[2001:db8::1]:8780"}},
        "no IPv6",
    ),
    "more CPUs than the engine has": ({"mcpu": 4_000_000}, "4000 CPUs"),
    "socket for any job's image": ({"container_socket": True, "allow_job_image": True}, "containerSocket"),
    "loopback gateway": ({"env": {"KICI_ORCHESTRATOR_URL": "http://127.0.0.1:8780"}}, "host.docker.internal"),
    "another installation": ({"installation_id": "somebody-else"}, "another installation"),
    "too little memory": ({"mem_bytes": 1024}, "resources"),
    "unknown capability": ({"cap_add": ["NO_SUCH_THING"]}, "capAdd"),
}


@pytest.mark.parametrize("name", REFUSED_SPECS)
async def test_a_spawn_that_cannot_work_is_refused_for_good_and_leaves_nothing(
    backend: ContainerBackend, spec: MakeSpec, idle_image: str, ours: Ours, name: str
) -> None:
    fields, said = REFUSED_SPECS[name]

    with pytest.raises(PermanentSpawnError, match=said) as refused:
        await backend.spawn(spec(idle_image, **fields), quiet)

    assert refused.value.code == SpawnCode.INVALID_SPEC
    assert ours() == []


async def test_a_label_set_without_an_image_is_refused(backend: ContainerBackend, spec: MakeSpec) -> None:
    with pytest.raises(PermanentSpawnError, match="there is no image"):
        await backend.spawn(spec(None), quiet)


@pytest.mark.scenario("S06")
@pytest.mark.scenario("S15")
@pytest.mark.parametrize(
    ("image", "fields", "code"),
    [
        ("scratch_image", {"agent": "inject"}, SpawnCode.NO_AGENT),
        ("no_shell_image", {"agent": "inject"}, SpawnCode.NO_AGENT),
        ("python_image", {}, SpawnCode.NO_AGENT),
        ("entrypoint_absent", {}, SpawnCode.COMMAND_NOT_FOUND),
        ("entrypoint_not_on_path", {}, SpawnCode.COMMAND_NOT_FOUND),
        ("entrypoint_a_directory", {}, SpawnCode.COMMAND_NOT_FOUND),
    ],
)
async def test_an_image_that_cannot_run_an_agent_fails_at_once_and_leaves_nothing(
    *,
    request: pytest.FixtureRequest,
    backend: ContainerBackend,
    spec: MakeSpec,
    ours: Ours,
    image: str,
    fields: dict[str, Any],
    code: SpawnCode,
) -> None:
    wanted = spec(request.getfixturevalue(image), **fields)

    with pytest.raises(PermanentSpawnError) as refused:
        await asyncio.wait_for(backend.spawn(wanted, quiet), 5)

    assert refused.value.code == code
    assert ours() == []


@pytest.fixture
def entrypoint_absent(local_image: LocalImage) -> str:
    return local_image(["/opt/no/such/agent"])


@pytest.fixture
def entrypoint_not_on_path(local_image: LocalImage) -> str:
    return local_image(["no-such-agent"])


@pytest.fixture
def entrypoint_a_directory(local_image: LocalImage) -> str:
    return local_image(["/bin"])


async def test_an_injected_agent_is_run_by_the_image_s_python(
    make_backend: MakeBackend, spec: MakeSpec, docker_client: docker.DockerClient, python_image: str
) -> None:
    backend = make_backend(agent=lambda: b"import sys\nprint('injected', sys.argv[0])\n")
    wanted = spec(python_image, agent="inject")

    ref = await backend.spawn(wanted, quiet)

    assert docker_client.api.wait(ref.ref)["StatusCode"] == 0
    assert (await backend.logs(wanted.agent_id)).strip() == f"injected {AGENT_PATH}"


async def test_the_injected_agent_is_this_installation_s_own(
    backend: ContainerBackend, spec: MakeSpec, docker_client: docker.DockerClient, python_image: str
) -> None:
    wanted = spec(python_image, agent="inject")

    ref = await backend.spawn(wanted, quiet)

    stream, _ = docker_client.api.get_archive(ref.ref, AGENT_PATH)
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
        member = archive.getmembers()[0]
        copied = archive.extractfile(member)
        assert copied is not None
        assert copied.read() == agent_source()
    assert (member.mode & 0o777, member.uid) == (0o644, 0)


@pytest.mark.scenario("S18")
@pytest.mark.parametrize("cancels", [1, 3])
async def test_a_cancelled_spawn_leaves_a_whole_container_or_none_before_the_cancel_goes_on(
    backend: ContainerBackend, spec: MakeSpec, idle_image: str, ours: Ours, cancels: int
) -> None:
    seen: list[str] = []
    spawning: asyncio.Task[ComputeRef]

    def cancel_at_the_start(message: str) -> None:
        seen.append(message)
        if message.startswith("starting"):
            for i in range(cancels):
                asyncio.get_running_loop().call_later(0.05 * (i + 1), spawning.cancel)

    wanted = spec(idle_image)
    spawning = asyncio.create_task(backend.spawn(wanted, cancel_at_the_start))

    with pytest.raises(asyncio.CancelledError):
        await spawning
    left = ours()
    gone = await backend.destroy(wanted.agent_id, facts_for(backend), ScaleDownReason.SHUTDOWN)

    assert seen
    assert [container["State"] for container in left] in ([], ["running"])
    assert gone == Gone()
    assert ours() == []


async def test_a_spawn_that_is_handed_back_while_the_engine_answers_leaves_the_agent_at_work(
    backend: ContainerBackend, spec: MakeSpec, idle_image: str, ours: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs, and may have registered, before the engine's answer has come: the next attempt takes it over."""
    running, may_answer = threading.Event(), threading.Event()
    start = docker.APIClient.start

    def answers_late(self: docker.APIClient, *args: Any, **keys: Any) -> None:
        start(self, *args, **keys)
        running.set()
        may_answer.wait(30)

    monkeypatch.setattr(docker.APIClient, "start", answers_late)
    wanted = spec(idle_image)
    spawning = asyncio.create_task(backend.spawn(wanted, quiet))
    await asyncio.to_thread(running.wait, 30)

    spawning.cancel()
    may_answer.set()
    await asyncio.wait([spawning])
    (at_work,) = ours()
    ref = await backend.spawn(wanted, quiet)

    assert spawning.cancelled()
    assert at_work["State"] == "running"
    assert ref.ref == at_work["Id"]
