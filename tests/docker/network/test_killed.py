"""A worker that is killed on its way to an isolated agent: nothing runs open, and nothing stays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import docker
import pytest

from hatchway.backends.container_network import table_prefix
from tests.docker.backends.rig import quiet
from tests.docker.network.conftest import MakeBackend, MakeSpec, order_for
from tests.docker.network.elsewhere import POINTS
from tests.docker.network.traces import networks_of, tables
from tests.docker.network.world import OPEN, World, reached

ROOT = Path(__file__).parents[3]


@pytest.mark.scenario("S01")
@pytest.mark.parametrize("point", POINTS)
async def test_a_worker_that_is_killed_on_the_way_leaves_nothing_open_and_nothing_that_stays(
    *,
    make_backend: MakeBackend,
    spec: MakeSpec,
    docker_client: docker.DockerClient,
    installation: str,
    world: World,
    ours: Callable[[], list[dict[str, Any]]],
    point: str,
) -> None:
    wanted = spec()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.docker.network.elsewhere"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(order_for(wanted, installation) | {"point": point}))
        child.stdin.close()
        said = child.stdout.readline()
        while said and said != "reached\n":  # its log goes there too
            said = child.stdout.readline()
        child.kill()
    assert said == "reached\n"
    running = [docker_client.containers.get(c["Id"]) for c in ours() if c["State"] == "running"]
    at_the_kill = [reached(container, world.targets, OPEN) for container in running]
    survivor = make_backend()

    ref = await survivor.spawn(wanted, quiet)
    container = docker_client.containers.get(ref.ref)
    afterwards, made = reached(container, world.targets, OPEN), ours()
    container.remove(v=True, force=True)
    await survivor.look_after_networks(unused_after=timedelta(0))

    assert at_the_kill == ([OPEN] if point.startswith("started") else [])
    assert afterwards == OPEN
    assert len(made) == 1
    assert networks_of(docker_client, installation) == []
    assert [table for table in tables() if table.startswith(table_prefix(installation))] == []
