"""Networks are shared by policy, kept while they are used, and removed when they are not; nobody else's are touched."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import docker
import pytest

from hatchway.backends.container import ContainerBackend
from hatchway.backends.container_errors import EngineUnreachable
from hatchway.backends.container_network import Networks
from hatchway.backends.container_upkeep import Upkeep
from hatchway.errors import TransientSpawnError
from tests.docker.backends.rig import quiet
from tests.docker.network.conftest import MakeBackend, MakeSpec, Spawn
from tests.docker.network.traces import networks_of, table_of, tables
from tests.docker.network.world import OPEN, World, reached, run

NOW = timedelta(0)


async def test_agents_of_one_policy_share_a_network_and_others_have_their_own(
    spawn: Spawn, make_backend: MakeBackend, docker_client: docker.DockerClient, installation: str
) -> None:
    one, other = make_backend(), make_backend()

    for backend in (one, other, one):
        await spawn(backend)
    shared = networks_of(docker_client, installation)
    await spawn(one, network_policy={"denyAll": True})
    await spawn(other, network_policy={"allowlist": ["10.0.0.0/8"]})

    assert len(shared) == 1
    assert shared[0]["Name"].startswith(f"hatchway-{installation}-")
    assert len(networks_of(docker_client, installation)) == 3


async def test_spawns_at_once_from_two_workers_are_all_isolated(
    *,
    spawn: Spawn,
    make_backend: MakeBackend,
    docker_client: docker.DockerClient,
    installation: str,
    world: World,
) -> None:
    workers = [make_backend(), make_backend()]

    agents = await asyncio.gather(*(spawn(worker) for worker in workers for _ in range(2)))

    assert [reached(agent, world.targets, OPEN) for agent in agents] == [OPEN] * 4
    assert len(networks_of(docker_client, installation)) in (1, 2), "each worker makes at most one"
    await spawn(workers[0])
    assert len(networks_of(docker_client, installation)) in (1, 2)


async def test_rules_that_were_flushed_come_back_for_agents_that_run(
    spawn: Spawn, make_backend: MakeBackend, docker_client: docker.DockerClient, installation: str, world: World
) -> None:
    agent = await spawn(make_backend(), network_policy={"allowlist": ["10.66.0.0/16"], "hostAccess": [world.other]})
    (network,) = networks_of(docker_client, installation)
    run("nft", "delete", "table", "inet", table_of(network))

    await make_backend().look_after_networks()

    expected = {"gateway", "10/8", "another port of the host", "another port of the nameserver"}
    assert reached(agent, world.targets, expected) == expected


async def test_without_the_upkeep_flushed_rules_stay_away(
    *,
    spawn: Spawn,
    backend: ContainerBackend,
    docker_client: docker.DockerClient,
    installation: str,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it is worth to agents that run already: of its two ways to put rules back, each is enough."""
    agent = await spawn(backend)
    (network,) = networks_of(docker_client, installation)
    with monkeypatch.context() as broken:
        run("nft", "delete", "table", "inet", table_of(network))
        broken.setattr(Networks, "put_back", lambda self: None)
        await backend.look_after_networks()
        by_the_engine_s_list = reached(agent, world.targets, OPEN)
        run("nft", "delete", "table", "inet", table_of(network))
        broken.setattr(Upkeep, "_used", _nobody)

        await backend.look_after_networks()

        without = reached(agent, world.targets, world.targets)

    assert by_the_engine_s_list == OPEN
    assert without == set(world.targets)


async def _nobody(self: Upkeep) -> set[str]:
    return set()


async def test_rules_come_back_while_neither_the_engine_nor_a_name_server_answers(
    *,
    spawn: Spawn,
    backend: ContainerBackend,
    docker_client: docker.DockerClient,
    installation: str,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(self: Networks) -> NoReturn:
        raise EngineUnreachable("the engine is away")

    agent = await spawn(backend)
    (network,) = networks_of(docker_client, installation)
    run("nft", "delete", "table", "inet", table_of(network))
    monkeypatch.setattr(Networks, "listed", away)

    with pytest.raises(EngineUnreachable):
        await backend.look_after_networks()

    assert reached(agent, world.targets, OPEN) == OPEN


async def test_an_unused_network_goes_with_its_rules_and_a_used_or_young_one_stays(
    *,
    spawn: Spawn,
    backend: ContainerBackend,
    docker_client: docker.DockerClient,
    installation: str,
) -> None:
    agent = await spawn(backend)
    (network,) = networks_of(docker_client, installation)

    await backend.look_after_networks(unused_after=NOW)
    in_use = networks_of(docker_client, installation)
    agent.stop(timeout=0)
    await backend.look_after_networks(unused_after=NOW)
    stopped = networks_of(docker_client, installation)
    agent.remove(v=True)
    await backend.look_after_networks()
    young = networks_of(docker_client, installation)
    await backend.look_after_networks(unused_after=NOW)

    assert [in_use, stopped, young] == [[network]] * 3
    assert networks_of(docker_client, installation) == []
    assert table_of(network) not in tables()


async def test_a_network_of_another_installation_is_left_alone(
    spawn: Spawn, make_backend: MakeBackend, docker_client: docker.DockerClient, installation: str
) -> None:
    agent = await spawn(make_backend())
    agent.remove(v=True, force=True)
    (network,) = networks_of(docker_client, installation)
    stranger = ContainerBackend("engine-under-test", None, f"test-{uuid.uuid4().hex}")

    await stranger.look_after_networks(unused_after=NOW)
    await stranger.close()

    assert networks_of(docker_client, installation) == [network]
    assert table_of(network) in tables()


async def test_rules_that_a_killed_worker_left_without_their_network_go(
    spawn: Spawn, backend: ContainerBackend, docker_client: docker.DockerClient, installation: str
) -> None:
    agent = await spawn(backend)
    (network,) = networks_of(docker_client, installation)
    agent.remove(v=True, force=True)
    docker_client.api.remove_network(network["Id"])

    await backend.look_after_networks()

    assert table_of(network) not in tables()


async def test_a_network_that_is_removed_under_a_spawn_lets_nothing_run(
    *,
    make_backend: MakeBackend,
    spec: MakeSpec,
    docker_client: docker.DockerClient,
    installation: str,
    ours: Callable[[], list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, wanted = docker.APIClient.start, spec()

    def swept_before_the_start(client: Any, container: str) -> None:
        (network,) = networks_of(docker_client, installation)
        docker_client.api.remove_network(network["Id"])
        start(client, container)

    with monkeypatch.context() as race:
        race.setattr(docker.APIClient, "start", swept_before_the_start)
        with pytest.raises(TransientSpawnError, match="network was removed"):
            await make_backend().spawn(wanted, quiet)
    left = ours()
    ref = await make_backend().spawn(wanted, quiet)

    assert left == []
    assert docker_client.containers.get(ref.ref).status == "running"


async def test_a_worker_that_cannot_isolate_says_so_when_it_starts(
    make_backend: MakeBackend, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hatchway.backends.container_firewall.shutil.which", lambda *_, **__: None)
    looked = asyncio.Event()

    async def look(self: Upkeep, *, unused_after: timedelta) -> None:
        looked.set()

    monkeypatch.setattr(Upkeep, "look", look)

    keeping = asyncio.create_task(make_backend().keep_networks(isolating=True))
    await asyncio.wait_for(looked.wait(), 10)
    keeping.cancel()

    assert "install nftables there" in capsys.readouterr().out
