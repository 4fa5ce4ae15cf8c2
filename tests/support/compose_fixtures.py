"""docker-compose.yml as it is, on a machine where none of its images can be pulled.

The stand-ins: a Debian made by debootstrap takes the place of python:3.11-slim, and the Dockerfile is built on it
unmodified; the same Debian with its Postgres and a start script takes the place of postgres; the dev server of the
`temporal` command that of Temporal's own images. What the compose file wires together (secrets, roles, networks,
health, order, users) is the real thing, and the stand-ins check it: a wrong password stops them.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import ImageNotFound

from hatchway.dev.temporal import temporal_binary

ROOT = Path(__file__).parent.parent.parent
STAND_INS = Path(__file__).parent / "stand_ins"
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates,postgresql,busybox-static"
LEFT_OUT = re.compile(
    r"\./(proc/|sys/|var/cache/|var/lib/apt/lists/|usr/share/(doc|man|info|locale)/|usr/lib/[^/]+/libLLVM|usr/lib/llvm)"
)
CONTEXT = (
    "Dockerfile", ".dockerignore", "constraints.txt", "pyproject.toml", "README.md", "LICENSE", "worker.py",
    "hatchway", "workflows", "activities", "examples", "deploy",
)  # fmt: skip


@pytest.fixture(scope="session")
def python_slim(docker_client: docker.DockerClient) -> str:
    """The stand-in for python:3.11-slim: Debian's smallest system with Python 3.11. Half a minute once a machine."""
    version = hashlib.sha256(f"{SUITE} {PACKAGES}".encode()).hexdigest()[:12]
    reference = f"hatchway-test/python-slim:{version}"
    try:
        docker_client.images.get(reference)
    except ImageNotFound:
        root = Path(tempfile.mkdtemp(prefix="hatchway-debootstrap-"))
        try:
            _run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root)])
            with tempfile.NamedTemporaryFile(suffix=".tar") as packed:
                with tarfile.open(packed.name, "w") as tar:
                    tar.add(root, arcname=".", filter=_kept)
                _docker("import", packed.name, reference)
        finally:
            shutil.rmtree(root)
    return reference


def _kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without what the engine fills itself, and without what no test runs: documentation, caches, Postgres's JIT."""
    return None if member.isdev() or LEFT_OUT.match(member.name) else member


@pytest.fixture(scope="session")
def hatchway_image(python_slim: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The shipped Dockerfile, built. Its wheels come from here: a container may not reach the package index.

    It is half a gigabyte and new with every change of the code, so it goes when the run ends.
    """
    context = tmp_path_factory.mktemp("build")
    for name in CONTEXT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, context / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, context / name)
    _wheels(context, context / "dist/wheels")
    reference = f"hatchway-test/hatchway:{secrets.token_hex(4)}"  # two runs on one engine do not share it
    _docker("build", "--quiet", "--build-arg", f"PYTHON_IMAGE={python_slim}", "--tag", reference, str(context))
    yield reference
    _docker("rmi", reference)


def _wheels(source: Path, into: Path) -> None:
    """Wheels of Hatchway and all that it needs, for the stand-in's Python 3.11, whichever Python runs this."""
    _pip("wheel", "--no-deps", "--wheel-dir", str(into), str(source))
    machine = os.uname().machine
    target = ["--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none"]
    target += [f"--platform={kind}_{machine}" for kind in ("manylinux2014", "manylinux_2_17", "manylinux_2_28")]
    built = [str(wheel) for wheel in into.glob("hatchway-*.whl")]
    constraints = str(source / "constraints.txt")
    _pip("download", "--only-binary=:all:", *target, "--constraint", constraints, "--dest", str(into), *built)


def _pip(*arguments: str) -> None:
    _run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments])


def _docker(*arguments: str) -> None:
    _run(["docker", *arguments])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}", pytrace=False)


@pytest.fixture(scope="session")
def compose_images(python_slim: str, hatchway_image: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What docker-compose.yml takes its images from: variable -> stand-in."""
    context = tmp_path_factory.mktemp("stand-ins")
    shutil.copytree(STAND_INS, context, dirs_exist_ok=True)
    shutil.copy2(temporal_binary(), context / "temporal/temporal")
    made = {}
    for name in ("postgres", "temporal"):
        made[name] = f"hatchway-test/{name}:latest"
        _docker("build", "--quiet", "--build-arg", f"BASE={python_slim}", "--tag", made[name], str(context / name))
    return {
        "HATCHWAY_IMAGE": hatchway_image,
        "POSTGRES_IMAGE": made["postgres"],
        "TEMPORAL_SERVER_IMAGE": made["temporal"],
        "TEMPORAL_ADMIN_TOOLS_IMAGE": made["temporal"],
        "TEMPORAL_UI_IMAGE": made["temporal"],
    }
