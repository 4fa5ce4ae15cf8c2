"""`hatchway demo --docker`: through a container, from a registry that wants the job's own password."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.support.postgres_fixtures import private_directory

pytestmark = pytest.mark.needs("docker", "registry")


@pytest.fixture
def directory() -> Iterator[Path]:
    with private_directory("hatchway-demo-docker-") as path:
        path.chmod(0o711)
        yield path


def demo(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("DATABASE_URL", "HATCHWAY_"))}
    return subprocess.run(
        [sys.executable, "-m", "hatchway.cli", "demo", "--docker", "--directory", str(directory / "demo")],
        env={**own, "CI": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_a_container_is_provisioned_with_the_jobs_password_and_a_wrong_one_fails_though_the_image_is_cached(
    directory: Path, docker_client: docker.DockerClient
) -> None:
    done = demo(directory)

    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["ok"] is True
    assert result["stages_s"]["spawning"] > 0
    served, _, refused = done.stdout.partition("now with a wrong password; the image is in the engine already")
    assert "job done" in served
    assert "refused: auth_denied" in refused
    assert "job done" not in refused
    left = docker_client.containers.list(all=True, filters={"label": "kici-scaler-name=demo"})
    assert [container.name for container in left] == []
    assert [tag for image in docker_client.images.list() for tag in image.tags if "demo/agent" in tag] == []


def test_without_an_engine_the_demo_says_what_is_missing(directory: Path) -> None:
    done = demo(directory, DOCKER_HOST=f"unix://{directory}/absent.sock")

    assert done.returncode == 1
    assert "container engine" in done.stderr
    assert "absent.sock" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_registry_program_the_demo_says_which_package_has_it(directory: Path) -> None:
    done = demo(directory, PATH="/nowhere")

    assert done.returncode == 1
    assert "docker-registry" in done.stderr
