"""Rules that cannot be installed, or do not stand at the start, stop the spawn: no container runs open, or stays."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import docker
import pytest

from hatchway.backends.container_firewall import Firewall
from hatchway.backends.container_policy import Policy
from hatchway.backends.container_rules import RuleSet
from hatchway.errors import PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from tests.docker.backends.rig import quiet
from tests.docker.network.conftest import MakeBackend, MakeSpec, Spawn, order_for
from tests.docker.network.traces import networks_of, table_of, tables
from tests.docker.network.world import OPEN, World, reached, run

Ours = Callable[[], list[dict[str, Any]]]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def starts(docker_client: docker.DockerClient, installation: str) -> Callable[[], list[str]]:
    """The containers of this test that the engine ever started, up to now."""
    since = docker_client.info()["SystemTime"]

    def started() -> list[str]:
        until = docker_client.info()["SystemTime"]
        filters = {"event": "start", "label": f"hatchway.installation={installation}"}
        seen = docker_client.api.events(since=_seconds(since), until=_seconds(until), filters=filters, decode=True)
        return [event["id"] for event in seen]

    return started


def _seconds(moment: str) -> Any:
    return datetime.fromisoformat(moment).timestamp()


@pytest.fixture
def nft(tmp_path: Path) -> Callable[[str], str]:
    """A program in nft's place."""

    def make(script: str) -> str:
        path = tmp_path / "nft"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


PROGRAMS: dict[str, tuple[str, type[SpawnError], str]] = {
    "not allowed": ("echo 'Operation not permitted (you must be root)' >&2; exit 1", PermanentSpawnError,
                    "CAP_NET_ADMIN"),
    "refused": ("echo 'Error: Could not process rule: No buffer space available' >&2; exit 1", TransientSpawnError,
                "No buffer space"),
    "killed": ("kill -9 $$", TransientSpawnError, "nft refused"),
    "takes it and does nothing": ("exit 0", TransientSpawnError, "does not show them"),
    "loses rules": (
        "if [ \"$1\" = --file ]; then grep -v drop | exec /usr/sbin/nft --file -; fi; exec /usr/sbin/nft \"$@\"",
        TransientSpawnError, "does not show them",
    ),
    "cannot list": ("[ \"$1\" = --file ] && exit 0; echo 'Error: syntax error' >&2; exit 1", TransientSpawnError,
                    "syntax error"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_firewall_that_does_not_do_its_work_stops_the_spawn(
    *,
    spawn: Spawn,
    make_backend: MakeBackend,
    nft: Callable[[str], str],
    ours: Ours,
    starts: Callable[[], list[str]],
    name: str,
) -> None:
    script, kind, said = PROGRAMS[name]

    with pytest.raises(kind, match=said) as refused:
        await spawn(make_backend(firewall=Firewall(nft(script))))

    assert refused.value.code == SpawnCode.DAEMON_UNAVAILABLE
    assert "nothing was started" in str(refused.value)
    assert (ours(), starts()) == ([], [])


async def test_a_machine_without_nft_stops_the_spawn_and_says_what_to_install(
    spawn: Spawn, make_backend: MakeBackend, ours: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hatchway.backends.container_firewall.shutil.which", lambda *_, **__: None)

    with pytest.raises(PermanentSpawnError, match=r"install nftables there, or say `networkIsolation: false`"):
        await spawn(make_backend())

    assert ours() == []


class Meddled(Firewall):
    """Somebody changes the table between its installation and the container's start."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self._change = change

    def verify(self, table: str) -> None:
        run("nft", *self._change.format(table=table).split())
        super().verify(table)


MEDDLING = {
    "removed": "delete table inet {table}",
    "emptied": "flush table inet {table}",
    "one accept in front": "insert rule inet {table} elsewhere accept",
    "one accept for the host": "insert rule inet {table} to_host ip daddr 172.17.0.1 accept",
    "asleep": "add table inet {table} {{ flags dormant ; }}",
}


@pytest.mark.parametrize("name", MEDDLING)
async def test_rules_that_were_changed_meanwhile_stop_the_start_and_the_next_attempt_puts_them_back(
    *,
    make_backend: MakeBackend,
    spec: MakeSpec,
    ours: Ours,
    starts: Callable[[], list[str]],
    docker_client: docker.DockerClient,
    world: World,
    name: str,
) -> None:
    wanted = spec()

    with pytest.raises(TransientSpawnError, match="changed or removed since they were installed"):
        await make_backend(firewall=Meddled(MEDDLING[name])).spawn(wanted, quiet)
    left = (ours(), starts())
    ref = await make_backend().spawn(wanted, quiet)

    assert left == ([], [])
    assert starts() == [ref.ref]
    assert reached(docker_client.containers.get(ref.ref), world.targets, OPEN) == OPEN


async def test_without_the_look_before_the_start_an_agent_would_run_open(
    make_backend: MakeBackend,
    spec: MakeSpec,
    docker_client: docker.DockerClient,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What that look is worth."""
    monkeypatch.setattr(Firewall, "verify", lambda self, table: None)

    ref = await make_backend(firewall=Meddled(MEDDLING["removed"])).spawn(spec(), quiet)

    assert reached(docker_client.containers.get(ref.ref), world.targets, world.targets) == set(world.targets)


async def test_a_worker_that_knows_the_rules_notices_that_they_were_changed(
    spawn: Spawn, make_backend: MakeBackend, docker_client: docker.DockerClient, installation: str, world: World
) -> None:
    worker = make_backend()
    agent = await spawn(worker)
    (network,) = networks_of(docker_client, installation)
    run("nft", "insert", "rule", "inet", table_of(network), "elsewhere", "accept")
    opened = reached(agent, world.targets, {"10/8"})

    await spawn(worker)

    assert "10/8" in opened
    assert reached(agent, world.targets, OPEN) == OPEN


@pytest.mark.parametrize(
    "prefix", [["unshare", "--net"], ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]]
)
async def test_a_worker_that_cannot_reach_the_engine_s_firewall_starts_nothing(
    spec: MakeSpec, ours: Ours, installation: str, prefix: list[str]
) -> None:
    order = order_for(spec(), installation)

    done = subprocess.run(
        [*prefix, sys.executable, "-m", "tests.docker.network.elsewhere"],
        input=json.dumps(order), capture_output=True, text=True, cwd=ROOT, check=True, timeout=60,
    )  # fmt: skip

    said = json.loads(done.stdout.splitlines()[-1])
    assert said["type"] == "PermanentSpawnError"
    assert ("not in this worker's network namespace" if "--net" in prefix else "CAP_NET_ADMIN") in said["error"]
    assert ours() == []


ALTERED: dict[str, dict[str, Any]] = {
    "traffic between containers": {"options": {"com.docker.network.bridge.enable_icc": "true"}},
    "IPv6": {
        "enable_ipv6": True,
        "ipam": docker.types.IPAMConfig(pool_configs=[docker.types.IPAMPool("fd00:77::/64")]),
    },
}


@pytest.mark.parametrize("name", ALTERED)
async def test_a_network_that_is_not_as_it_was_made_is_not_used(
    *, spec: MakeSpec, make_backend: MakeBackend, docker_client: docker.DockerClient, installation: str, ours: Ours,
    name: str,
) -> None:  # fmt: skip
    wanted = spec()
    policy = Policy.of(wanted, wanted.env["KICI_ORCHESTRATOR_URL"])
    labels = {"hatchway.installation": installation, "hatchway.network-policy-key": policy.key}
    options = {"com.docker.network.bridge.name": "hw-0123456789ab", "com.docker.network.bridge.enable_icc": "false"}
    altered = dict(ALTERED[name])
    docker_client.api.create_network(
        "hatchway-altered", driver="bridge", labels=labels, options=options | altered.pop("options", {}), **altered
    )

    with pytest.raises(TransientSpawnError, match="docker network rm"):
        await make_backend().spawn(wanted, quiet)

    assert ours() == []


async def test_a_gateway_that_cannot_be_resolved_stops_the_spawn_and_is_named(spawn: Spawn, ours: Ours) -> None:
    with pytest.raises(TransientSpawnError, match=r"gateway\.invalid"):
        await spawn(env={"KICI_ORCHESTRATOR_URL": "http://gateway.invalid:8780"})

    assert ours() == []


async def test_a_container_that_an_attempt_left_on_another_network_is_not_started(
    spec: MakeSpec,
    make_backend: MakeBackend,
    docker_client: docker.DockerClient,
    idle: str,
    installation: str,
    ours: Ours,
) -> None:
    wanted = spec()
    labels = {"kici-agent-id": wanted.agent_id, "hatchway.installation": installation}
    docker_client.api.create_container(idle, name=f"hatchway-{wanted.agent_id}", labels=labels)

    with pytest.raises(TransientSpawnError, match="not on an isolated network"):
        await make_backend().spawn(wanted, quiet)
    left = ours()
    ref = await make_backend().spawn(wanted, quiet)

    assert left == []
    assert docker_client.containers.get(ref.ref).status == "running"


async def test_a_container_that_an_attempt_left_on_its_isolated_network_is_started_behind_its_rules(
    spec: MakeSpec, make_backend: MakeBackend, docker_client: docker.DockerClient, world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    wanted = spec()
    with monkeypatch.context() as killed:
        killed.setattr(docker.APIClient, "start", _never)
        killed.setattr("hatchway.backends.container.ContainerBackend._remove_own", _nothing)
        with pytest.raises(RuntimeError, match="killed"):
            await make_backend().spawn(wanted, quiet)
    for table in tables():
        if table.startswith("hatchway_"):
            run("nft", "delete", "table", "inet", table)

    ref = await make_backend().spawn(wanted, quiet)

    assert reached(docker_client.containers.get(ref.ref), world.targets, OPEN) == OPEN


def _never(*_: object, **__: object) -> None:
    raise RuntimeError("killed before the start")


async def _nothing(*_: object) -> None:
    """What a killed worker removes."""


def test_rules_are_replaced_in_one_step() -> None:
    """`delete` and the new table are one file, which nft loads whole or not at all."""
    broken = RuleSet("hatchway_test_atomic", "add table inet hatchway_test_atomic\nnonsense\n", ())

    with pytest.raises(Exception, match=r"nonsense|syntax"):
        Firewall().ensure(broken)

    assert "hatchway_test_atomic" not in tables()
