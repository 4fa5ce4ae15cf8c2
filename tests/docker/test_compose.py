"""docker-compose.yml: what it shows of itself, and one provision through the whole of it."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.compose import ROOT, Composed, composed

# Where the stand-in images are made anew on a busy machine, the first test waits for minutes.
pytestmark = [pytest.mark.needs("compose"), pytest.mark.timeout(1200)]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Composed]:
    """The file with its own images' names; never started."""
    with composed(tmp_path, {}) as project:
        yield project


@pytest.fixture(scope="module")
def stack(compose_images: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """All of it, up."""
    with composed(tmp_path_factory.mktemp("compose"), compose_images) as project:
        project.compose("up", "--detach", "--no-build", "--pull", "never")
        project.wait_until_healthy()
        yield project


def test_compose_takes_the_file(project: Composed) -> None:
    assert project.compose("config", "--quiet").stderr == ""


def test_only_the_ui_and_the_gateway_are_published_and_only_on_loopback(project: Composed) -> None:
    services = project.configuration("--profile", "docker")["services"]

    published = {(name, port["host_ip"]) for name, service in services.items() for port in service.get("ports", [])}

    assert published == {("ui", "127.0.0.1"), ("gateway", "127.0.0.1")}


def test_the_docker_socket_is_in_one_profile_only(project: Composed) -> None:
    def with_socket(*profiles: str) -> set[str]:
        services = project.configuration(*profiles)["services"]
        return {n for n, s in services.items() for v in s.get("volumes", []) if "docker.sock" in str(v.get("source"))}

    assert with_socket() == set()
    assert with_socket("--profile", "docker") == {"worker-docker"}


def test_every_service_gives_up_its_capabilities(project: Composed) -> None:
    services = project.configuration("--profile", "docker")["services"]

    kept = {n for n, s in services.items() if s.get("cap_drop") != ["ALL"] or s.get("privileged")}

    assert kept == set()


def test_no_password_stands_in_the_configuration(project: Composed) -> None:
    text = project.compose("--profile", "docker", "config").stdout

    assert [p.name for p in (project.directory / "secrets").iterdir() if p.read_text() in text] == []


def test_secrets_are_made_once_and_closed_to_others(project: Composed) -> None:
    directory = project.directory / "secrets"
    before = {path.name: path.read_text() for path in directory.iterdir()}

    again = subprocess.run(
        ["sh", project.directory / "deploy/compose-secrets.sh"], check=True, capture_output=True, text=True
    )

    assert {path.name: path.read_text() for path in directory.iterdir()} == before
    assert len(set(before.values())) == len(before) == 6
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert not any(value in again.stdout + again.stderr for value in before.values())


def test_the_images_of_the_file_are_pinned() -> None:
    lines = [line for line in (ROOT / "docker-compose.yml").read_text().splitlines() if "image:" in line]

    assert lines
    assert [line for line in lines if ":latest" in line or line.count(":") < 3] == []


@pytest.mark.needs("debootstrap")
def test_a_provision_runs_through_the_composed_stack(stack: Composed) -> None:
    request = json.dumps({"labels": ["linux"], "job_id": "composed-1", "run_id": "1"})

    done = stack.compose(
        "exec", "-T", "worker", "hatchway", "provision", "-", "--wait", "closed", "--json", stdin=request
    )

    answer = json.loads(done.stdout)
    listed = stack.compose("exec", "-T", "worker", "hatchway-entrypoint", "list", "--json").stdout
    query = "select agent_id, result, end_reason from scaler_provision_outcomes where job_id = 'composed-1'"
    recorded = stack.compose(
        "exec", "-T", "postgres", "psql", "-At", "-U", "postgres", "-d", "hatchway", "-c", query
    ).stdout
    assert recorded.strip() == f"{answer['agent_id']}|succeeded|completed"
    assert listed.strip() == ""


@pytest.mark.needs("debootstrap")
def test_ui_and_gateway_answer_on_their_ports(stack: Composed) -> None:
    ui = httpx.get(f"http://127.0.0.1:{stack.ui_port}/", trust_env=False)
    gateway = httpx.get(f"http://127.0.0.1:{stack.gateway_port}/readyz", trust_env=False)

    assert (ui.status_code, gateway.status_code) == (200, 200)


@pytest.mark.needs("debootstrap")
def test_nothing_of_ours_runs_as_root(stack: Composed) -> None:
    running = [c for c in stack.containers() if c["State"]["Running"]]

    users = {
        c["Name"]: {
            line.split()[1]
            for line in subprocess.run(
                ["docker", "top", c["Id"], "-eo", "pid,uid"], capture_output=True, text=True, check=True
            ).stdout.splitlines()[1:]
        }
        for c in running
    }

    assert len(users) == 5
    # `init: true` puts the engine's own init in front of a worker, as its user.
    assert [name for name, uids in users.items() if "0" in uids] == []


@pytest.mark.needs("debootstrap")
def test_no_password_shows_in_inspect_or_in_a_log(stack: Composed) -> None:
    passwords = {p.name: p.read_text() for p in (stack.directory / "secrets").iterdir()}

    shown = json.dumps(stack.containers()) + stack.logs()

    assert [name for name, value in passwords.items() if value in shown] == []


@pytest.mark.needs("debootstrap")
def test_the_gateways_login_reads_no_table(stack: Composed) -> None:
    as_gateway = 'PGPASSWORD=$(cat /run/secrets/gateway_password) psql -h 127.0.0.1 -U gateway -d hatchway -c "$0"'
    query = "select * from scaler_spawning_agents"

    refused = stack.compose("exec", "-T", "postgres", "sh", "-c", as_gateway, query, check=False)

    # The login is right, and gets it nowhere: a wrong one would be "password authentication failed".
    assert "permission denied for table" in refused.stderr


@pytest.mark.needs("debootstrap")
def test_one_shot_services_may_run_again(stack: Composed) -> None:
    for service in ("temporal-schema", "temporal-namespace", "migrate", "setup"):
        stack.compose("run", "--rm", "--no-deps", "--pull", "never", service)


def test_the_build_sees_no_secret() -> None:
    admitted = [line for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")]

    assert "*" in (ROOT / ".dockerignore").read_text().split()
    assert [line for line in admitted if "secrets" in line or line in ("!.", "!*", "!deploy")] == []
