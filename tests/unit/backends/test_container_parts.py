"""The parts of the container backend that need no engine."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import NotFound

from hatchway.backends.base import SpawnSpec
from hatchway.backends.container_create import (
    STOP_GRACE,
    container_labels,
    is_stopping,
    refuse_what_cannot_run,
    secret_values,
    socket_path,
    stop_grace,
    stopping_name,
)
from hatchway.backends.container_engine import EngineFacts, _host_id
from hatchway.backends.container_entry import check_entry
from hatchway.backends.container_progress import PullProgress
from hatchway.backends.container_pull import Image
from hatchway.config.schema import LabelSet, Scaler, ScalerType
from hatchway.errors import PermanentSpawnError, SpawnCode

FACTS = EngineFacts(host_id="docker-a", os="linux", arch="amd64", cpus=2)
DIRECTORY, LINK = 1 << 31, 1 << 27


def make_spec(**fields: Any) -> SpawnSpec:
    label_set = LabelSet(labels=["linux"], image="app:1", agent=fields.pop("agent", "image"))
    scaler = Scaler(
        name="docker", type=ScalerType.CONTAINER, max_agents=1, label_sets=[label_set], network_isolation=False
    )
    settings: dict[str, Any] = {"env": {}, "image": "app:1", "installation_id": "i"} | fields
    return SpawnSpec(agent_id="scaler-a", scaler=scaler, label_set=label_set, labels=("linux",), **settings)


def test_secrets_are_found_again_from_what_the_engine_keeps() -> None:
    spec = make_spec(
        env={"TOKEN": "abc-def", "URL": "https://u:abc-def@h", "PUBLIC": "1", "KICI_SCALER_CLAIM_CODE": "claim"},
        secret_values=frozenset({"abc-def"}),
    )
    labels = container_labels(spec)
    kept = {"Config": {"Labels": labels, "Env": [f"{k}={v}" for k, v in spec.env.items()]}}

    found = secret_values(kept)

    assert found == {"abc-def", "https://u:abc-def@h", "claim"}
    assert not any(secret in value for value in labels.values() for secret in ("abc-def", "claim"))


def test_labels_leave_out_what_the_spawn_does_not_have() -> None:
    assert "kici-bound-job-id" not in container_labels(make_spec())
    assert container_labels(make_spec(job_id="j"))["kici-bound-job-id"] == "j"


@pytest.mark.parametrize(
    ("label", "seconds"), [("30", 30), ("0", 0), ("0.5", 0.5), ("-1", 0), ("soon", 30), ("inf", 30), (None, 30)]
)
def test_the_stop_grace_is_what_the_spawn_wrote_down(label: str | None, seconds: float) -> None:
    labels = {} if label is None else {STOP_GRACE: label}

    assert stop_grace(labels) == timedelta(seconds=seconds)


def test_a_container_that_is_torn_down_is_known_by_its_name() -> None:
    assert is_stopping("/" + stopping_name("scaler-a"))
    assert not is_stopping("/hatchway-scaler-a")


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("http://127.0.0.1:8780", True),
        ("http://localhost:8780", True),
        ("http://[::1]:8780", True),
        ("http://127.0.0.1:1, http://127.0.0.2:1", True),
        ("http://127.0.0.1:1,http://gateway:8780", False),
        ("http://host.docker.internal:8780", False),
        ("http://172.17.0.1:8780", False),
        ("http://localhost.example.com:8780", False),
        ("", False),
    ],
)
def test_a_gateway_that_no_container_can_reach_is_refused(url: str, refused: bool) -> None:
    spec = make_spec(env={"KICI_ORCHESTRATOR_URL": url})

    if refused:
        with pytest.raises(PermanentSpawnError, match=r"host\.docker\.internal"):
            refuse_what_cannot_run(spec, "i", FACTS)
    else:
        refuse_what_cannot_run(spec, "i", FACTS)


def test_the_engine_s_socket_is_looked_for_where_the_engine_is() -> None:
    assert socket_path("unix:///run/user/1000/podman/podman.sock") == "/run/user/1000/podman/podman.sock"
    assert socket_path("tcp://far:2376") == "/var/run/docker.sock"


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (("ABCD:EF12", "ABCD:EF12"), "docker-abcdef12"),
        (
            ("7f1ad1a4-2ac1-4d4b-8b0c-2f2f7d9f0a11", "7f1ad1a4-2ac1-4d4b-8b0c-2f2f7d9f0a11"),
            "docker-7f1ad1a4-2ac1-4d4b-8b0c-2f2f7d9f0a11",
        ),
    ],
)
def test_an_engine_is_named_by_its_own_id(ids: tuple[str, str], expected: str) -> None:
    assert _host_id({"ID": ids[0]}, {"ID": ids[1]}) == expected


def test_an_engine_that_makes_up_its_id_is_named_by_its_machine_and_storage() -> None:
    def answer(identity: str, root: str = "/var/lib/containers") -> dict[str, str]:
        return {"ID": identity, "Name": "build-1", "DockerRootDir": root}

    first, second = _host_id(answer("a"), answer("b")), _host_id(answer("c"), answer("d"))

    assert first == second
    assert first.startswith("podman-")
    assert first != _host_id(answer("a", "/home/ci/containers"), answer("b", "/home/ci/containers"))


class Files:
    """Answers the engine's archive call for a container with these files: path -> Go file mode, or a link's target."""

    base_url, api_version, timeout = "http://engine", "1.41", 5

    def __init__(self, files: dict[str, int | str], *, removed: bool = False) -> None:
        self.files = files
        self.removed = removed

    def inspect_container(self, container_id: str) -> None:
        if self.removed:
            raise NotFound(f"No such container: {container_id}")

    def head(self, url: str, params: dict[str, str], timeout: float) -> SimpleNamespace:
        there = self.files.get(params["path"])
        if there is None:
            return SimpleNamespace(status_code=404, headers={})
        link = isinstance(there, str)
        stat = {"mode": LINK | 0o777 if link else there, "linkTarget": there if link else ""}
        header = base64.b64encode(json.dumps(stat).encode()).decode()
        return SimpleNamespace(status_code=200, headers={"X-Docker-Container-Path-Stat": header})


@pytest.mark.parametrize(
    ("argv0", "files", "runs"),
    [
        ("/agent", {"/agent": 0o755}, True),
        ("/agent", {}, False),
        ("/agent", {"/agent": 0o644}, False),
        ("/agent", {"/agent": DIRECTORY | 0o755}, False),
        ("/agent", {"/agent": "/opt/agent", "/opt/agent": 0o755}, True),
        ("/agent", {"/agent": "/opt/agent"}, False),
        ("./agent", {"/srv/./agent": 0o755}, True),
        ("agent", {"/usr/bin/agent": 0o755}, True),
        ("agent", {"/srv/agent": 0o755}, False),
        ("agent", {"/bin/agent": 0o644, "/usr/bin/agent": 0o755}, True),
        ("agent", {"/bin/agent": DIRECTORY | 0o755}, False),
    ],
)
def test_an_entrypoint_is_looked_up_as_the_kernel_would(argv0: str, files: dict[str, int | str], runs: bool) -> None:
    image = Image("sha256:a", "amd64", (argv0, "--flag"), "/bin:/usr/bin", "/srv", ())

    if runs:
        check_entry(Files(files), "c", image, make_spec())
    else:
        with pytest.raises(PermanentSpawnError) as refused:
            check_entry(Files(files), "c", image, make_spec())
        assert refused.value.code == SpawnCode.COMMAND_NOT_FOUND


def test_a_container_that_is_gone_is_not_the_image_s_fault() -> None:
    image = Image("sha256:a", "amd64", ("/agent",), None, "/", ())

    with pytest.raises(NotFound):
        check_entry(Files({}, removed=True), "c", image, make_spec())


def test_the_spawn_s_own_path_counts_and_the_image_s_does_not() -> None:
    image = Image("sha256:a", "amd64", (), "/usr/bin", "/", ())
    files = Files({"/usr/bin/python3": 0o755})

    check_entry(files, "c", image, make_spec(agent="inject"))
    with pytest.raises(PermanentSpawnError) as refused:
        check_entry(files, "c", image, make_spec(agent="inject", env={"PATH": "/opt/bin"}))

    assert refused.value.code == SpawnCode.NO_AGENT


def test_progress_counts_layers_and_bytes_and_repeats_nothing() -> None:
    said: list[str] = []

    def hear(message: str) -> None:
        said.append(message)

    progress = PullProgress("app:1", hear)
    for event in (
        {"status": "Pulling from team/app", "id": "1"},
        {"status": "Already exists", "id": "a"},
        {"status": "Pulling fs layer", "id": "b"},
        {"status": "Pulling fs layer", "id": "c"},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 25, "total": 100}},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 25, "total": 100}},
        {"status": "Downloading", "id": "c", "progressDetail": {"current": 75, "total": 100}},
        {"status": "Download complete", "id": "b"},
        {"status": "Pull complete", "id": "b"},
        {"status": "Pull complete", "id": "c"},
        {"status": "Digest: sha256:aa"},
    ):
        progress.take(event)

    assert said == [
        "pulling app:1, 1/1 layers",
        "pulling app:1, 1/2 layers",
        "pulling app:1, 1/3 layers",
        "pulling app:1, 1/3 layers, 25 %",
        "pulling app:1, 1/3 layers, 50 %",
        "pulling app:1, 1/3 layers, 87 %",
        "pulling app:1, 2/3 layers, 87 %",
        "pulling app:1, 3/3 layers, 100 %",
    ]
