"""What an isolated agent reaches, address by address, from inside its container; and that each check can fail."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import docker
import pytest

from hatchway.backends.container import ContainerBackend
from tests.docker.network.conftest import MakeBackend, Spawn
from tests.docker.network.traces import bridge_of, networks_of, table_of
from tests.docker.network.world import INTERNET, OPEN, PORT, World, listener, reached, run


def only_network(client: docker.DockerClient, installation: str) -> dict[str, Any]:
    (network,) = networks_of(client, installation)
    return network


async def test_an_agent_reaches_the_gateway_and_the_internet_and_nothing_else(spawn: Spawn, world: World) -> None:
    agent = await spawn()

    assert reached(agent, world.targets, OPEN) == OPEN


async def test_without_isolation_an_agent_reaches_all_of_it(spawn: Spawn, world: World) -> None:
    agent = await spawn(network_isolation=False)

    assert reached(agent, world.targets, world.targets) == set(world.targets)


async def test_it_is_these_rules_that_close_and_the_next_spawn_puts_them_back(
    spawn: Spawn, backend: ContainerBackend, world: World, docker_client: docker.DockerClient, installation: str
) -> None:
    agent = await spawn(backend)
    table = table_of(only_network(docker_client, installation))

    run("nft", "delete", "table", "inet", table)
    without = reached(agent, world.targets, world.targets)
    await spawn(backend)
    again = reached(agent, world.targets, OPEN)

    assert without == set(world.targets)
    assert again == OPEN


async def test_the_host_is_closed_at_the_agents_own_bridge_too(
    spawn: Spawn, docker_client: docker.DockerClient, installation: str
) -> None:
    agent = await spawn()
    network = only_network(docker_client, installation)
    own_gateway = docker_client.api.inspect_network(network["Id"])["IPAM"]["Config"][0]["Gateway"]

    with listener(own_gateway) as port:
        target = {"own bridge": f"{own_gateway}:{port}"}
        closed = reached(agent, target)
        run("nft", "delete", "table", "inet", table_of(network))
        opened = reached(agent, target, target)

    assert (closed, opened) == (set(), {"own bridge"})


def serve(agent: Any) -> None:
    agent.exec_run(["/bin/sh", "-c", f"while true; do echo hello | nc -l -p {PORT}; done"], detach=True)


def address_of(client: docker.DockerClient, agent: Any) -> str:
    (attached,) = client.api.inspect_container(agent.id)["NetworkSettings"]["Networks"].values()
    return str(attached["IPAddress"])


@pytest.fixture
def engine_lets_neighbours_talk(docker_client: docker.DockerClient) -> Iterator[list[list[str]]]:
    """Rules that take the engine's own "no traffic between containers" out of the way, once the test has named them."""
    rules: list[list[str]] = []
    yield rules
    for rule in rules:
        run("iptables", "-D", *rule)


async def test_no_agent_reaches_another_one_whatever_the_engine_and_the_policy_say(
    *,
    spawn: Spawn,
    backend: ContainerBackend,
    docker_client: docker.DockerClient,
    installation: str,
    engine_lets_neighbours_talk: list[list[str]],
) -> None:
    everything: dict[str, Any] = {"network_policy": {"allowlist": ["0.0.0.0/0"]}}
    agent, neighbour = await spawn(backend, **everything), await spawn(backend, **everything)
    serve(neighbour)
    target = {"neighbour": f"{address_of(docker_client, neighbour)}:{PORT}"}
    network = only_network(docker_client, installation)
    bridge = bridge_of(network)

    by_engine_and_rules = reached(agent, target)
    engine_lets_neighbours_talk.append(["FORWARD", "-i", bridge, "-o", bridge, "-j", "ACCEPT"])
    run("iptables", "-I", *engine_lets_neighbours_talk[0])
    by_rules = reached(agent, target)
    run("nft", "delete", "table", "inet", table_of(network))
    by_nobody = reached(agent, target, target)

    assert (by_engine_and_rules, by_rules, by_nobody) == (set(), set(), {"neighbour"})


async def test_a_container_of_another_network_is_out_of_reach(
    spawn: Spawn, docker_client: docker.DockerClient, idle: str
) -> None:
    stranger = docker_client.containers.run(idle, detach=True)
    try:
        serve(stranger)
        target = {"stranger": f"{address_of(docker_client, stranger)}:{PORT}"}
        isolated = reached(await spawn(), target)
        beside = reached(await spawn(network_isolation=False), target, target)
    finally:
        stranger.remove(force=True)

    assert (isolated, beside) == (set(), {"stranger"})


@pytest.fixture
def published(world: World) -> Iterator[int]:
    """A port of the host that is rewritten to a private address, as a published port of a container is."""
    port = world.gateway + 1 if world.gateway < 65535 else world.gateway - 1
    rule = ["PREROUTING", "-t", "nat", "-p", "tcp", "-d", world.docker_host, "--dport", str(port)]
    rule += ["-j", "DNAT", "--to-destination", f"10.66.0.10:{PORT}"]
    run("iptables", "-I", *rule)
    yield port
    run("iptables", "-D", *rule)


async def test_a_gateway_behind_a_published_port_is_reached_and_what_is_behind_it_is_not(
    spawn: Spawn, world: World, published: int
) -> None:
    agent = await spawn(env={"KICI_ORCHESTRATOR_URL": f"http://host.docker.internal:{published}"})

    targets, open_ = world.targets | {"published": f"{world.docker_host}:{published}"}, {"published", "internet"}
    assert reached(agent, targets, open_) == open_


async def test_several_gateways_are_all_reached_by_their_addresses(spawn: Spawn, world: World) -> None:
    urls = f"{world.gateway_url}, http://10.66.0.10:{PORT}, http://{world.docker_host}:{world.other}/path"

    agent = await spawn(env={"KICI_ORCHESTRATOR_URL": urls})

    expected = {*OPEN, "10/8", "another port of the host"}
    assert reached(agent, world.targets, expected) == expected


POLICIES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "an address": ({"allowlist": ["10.66.0.10"]}, {"gateway", "10/8"}),
    "networks": ({"allowlist": ["192.168.0.0/16", "172.16.0.0/12"]}, {"gateway", "192.168/16", "172.16/12"}),
    "a port": ({"allowlist": [f"{INTERNET}:{PORT}", "10.66.0.10:1"]}, {"gateway", "internet"}),
    "everything": (
        {"allowlist": ["0.0.0.0/0"]},
        {"gateway", "internet", "10/8", "172.16/12", "192.168/16", "carrier NAT", "benchmark",
         "another port of the nameserver"},
    ),
    "nothing": ({"denyAll": True}, {"gateway"}),
}  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
async def test_a_policy_opens_what_it_lists_and_nothing_else(spawn: Spawn, world: World, name: str) -> None:
    policy, expected = POLICIES[name]

    agent = await spawn(network_policy=policy)

    assert reached(agent, world.targets, expected) == expected


async def test_host_access_opens_ports_of_the_host_on_any_of_its_addresses(spawn: Spawn, world: World) -> None:
    agent = await spawn(network_policy={"hostAccess": [world.other, world.elsewhere]})

    expected = {*OPEN, "another port of the host", "another address of the host"}
    assert reached(agent, world.targets, expected) == expected


async def test_the_database_stays_closed_where_it_has_a_public_address(spawn: Spawn, make_backend: MakeBackend) -> None:
    database = {"database": f"{INTERNET}:5432"}
    everything: dict[str, Any] = {"network_policy": {"allowlist": ["0.0.0.0/0"]}}

    told = make_backend(closed=[f"{INTERNET}:5432", "127.0.0.1:7233"])
    with_policy = reached(await spawn(told, **everything), database)
    without_policy = reached(await spawn(told), database)
    untold = reached(await spawn(make_backend(), network_policy={"allowlist": ["203.0.0.0/8"]}), database, database)

    assert (with_policy, without_policy, untold) == (set(), set(), {"database"})


def resolved(agent: Any) -> bool:
    ran = agent.exec_run(["/bin/nslookup", "somewhere.example"])
    return INTERNET in ran.output.decode()


async def test_names_are_resolved_by_the_host_s_own_server_also_a_private_one(spawn: Spawn, world: World) -> None:
    agent = await spawn()

    assert resolved(agent)
    assert "another port of the nameserver" not in reached(agent, world.targets)


async def test_an_agent_that_may_reach_the_gateway_only_gets_no_dns_and_knows_the_gateway_by_name(
    spawn: Spawn, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await spawn(network_policy={"denyAll": True})

    assert not resolved(agent)
    target = {"by name": f"host.docker.internal:{world.gateway}"}
    assert reached(agent, target, target) == {"by name"}


async def test_there_is_no_way_around_by_ipv6(
    spawn: Spawn, docker_client: docker.DockerClient, installation: str
) -> None:
    agent = await spawn()
    network = only_network(docker_client, installation)
    bridge = bridge_of(network)
    pid = str(agent.attrs["State"]["Pid"])
    inside = ("nsenter", "--target", pid, "--net")
    assert "inet6" not in run(*inside, "ip", "address", "show", "eth0")
    # What an agent with the right to could do: give itself an address after all.
    run(*inside, "sysctl", "-w", "net.ipv6.conf.eth0.disable_ipv6=0")
    run(*inside, "ip", "address", "add", "fe80::7/64", "dev", "eth0", "nodad")
    run("ip", "address", "add", "fe80::8/64", "dev", bridge, "nodad")

    with listener(f"fe80::8%{bridge}") as port:
        probe = f"bash -c 'cat < /dev/tcp/fe80::8%eth0/{port}'"
        closed = _printed(*inside, "bash", "-c", f"timeout 2 {probe}")
        run("nft", "delete", "table", "inet", table_of(network))
        opened = _printed(*inside, "bash", "-c", f"timeout 60 {probe}")

    assert (closed, opened) == ("", "hello\n")


def _printed(*command: str) -> str:
    """Whatever it ends with."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
