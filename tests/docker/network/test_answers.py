"""Workers of one engine whose name servers answer differently: the rules are those of all, and stay as they are."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from ipaddress import IPv4Address

import docker
import pytest
from docker.models.containers import Container

from hatchway.backends import container_answers, container_network
from hatchway.backends.container import ContainerBackend
from hatchway.backends.container_rules import Endpoint, Openings
from hatchway.errors import SpawnCode, TransientSpawnError
from tests.docker.network.conftest import MakeBackend, Spawn
from tests.docker.network.traces import networks_of, table_of
from tests.docker.network.world import CLOSED, NEAR, PORT, World, listener, reached, run

GATEWAY = "gateway.example"
TOLD: ContextVar[str] = ContextVar("told")
"""What the name server of whoever asks now says that the gateway's address is. Unset: it does not answer."""


@pytest.fixture(autouse=True)
def _name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def addresses(host: str, port: int, family: int = 0) -> list[IPv4Address]:
        if told := TOLD.get(None):
            return [IPv4Address(told)]
        raise TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, f"no name server answers for {host}:{port}")

    monkeypatch.setattr(container_network, "_addresses", addresses)


@contextmanager
def _told(address: str) -> Iterator[None]:
    token = TOLD.set(address)
    yield
    TOLD.reset(token)


@pytest.fixture
def targets(world: World) -> Iterator[dict[str, str]]:
    """Both of the gateway's addresses."""
    with listener(NEAR, world.gateway):
        yield {"one": f"{world.docker_host}:{world.gateway}", "two": f"{NEAR}:{world.gateway}"}


@pytest.fixture
def addresses(world: World) -> dict[str, str]:
    return {"one": world.docker_host, "two": NEAR}


async def _agent(spawn: Spawn, worker: ContainerBackend, told: str, port: int) -> Container:
    with _told(told):
        return await spawn(
            worker, network_policy={"denyAll": True}, env={"KICI_ORCHESTRATOR_URL": f"http://{GATEWAY}:{port}"}
        )


def _rules(client: docker.DockerClient, installation: str) -> str:
    """With the kernel's handles: a rule that was loaded anew has another one."""
    (network,) = networks_of(client, installation)
    return run("nft", "--handle", "--numeric", "list", "table", "inet", table_of(network))


async def test_no_worker_takes_away_what_another_one_was_told(
    *,
    spawn: Spawn,
    make_backend: MakeBackend,
    docker_client: docker.DockerClient,
    installation: str,
    world: World,
    targets: dict[str, str],
    addresses: dict[str, str],
) -> None:
    workers = {name: make_backend() for name in addresses}
    agents = [await _agent(spawn, worker, addresses[name], world.gateway) for name, worker in workers.items()]
    for name, worker in workers.items():  # each takes up what the other one has brought
        with _told(addresses[name]):
            await worker.look_after_networks()
    settled = _rules(docker_client, installation)

    for name, worker in workers.items():
        with _told(addresses[name]):
            await worker.look_after_networks()
        agents.append(await _agent(spawn, worker, addresses[name], world.gateway))

    assert _rules(docker_client, installation) == settled
    assert [reached(agent, targets, targets) for agent in agents] == [set(targets)] * 4


async def test_workers_that_load_at_once_leave_the_rules_of_both(
    *,
    spawn: Spawn,
    make_backend: MakeBackend,
    docker_client: docker.DockerClient,
    installation: str,
    world: World,
    targets: dict[str, str],
    addresses: dict[str, str],
) -> None:
    first = await _agent(spawn, make_backend(), addresses["one"], world.gateway)

    async def look(name: str) -> None:
        with _told(addresses[name]):
            await make_backend().look_after_networks()

    await asyncio.gather(*(look(name) for name in ["one", "two"] * 4))

    assert reached(first, targets, targets) == set(targets)


async def test_flushed_rules_come_back_with_what_all_were_told(
    *,
    spawn: Spawn,
    make_backend: MakeBackend,
    docker_client: docker.DockerClient,
    installation: str,
    world: World,
    targets: dict[str, str],
    addresses: dict[str, str],
) -> None:
    """Put back by the worker that was there first, while the name server does not answer."""
    first = make_backend()
    agent = await _agent(spawn, first, addresses["one"], world.gateway)
    await _agent(spawn, make_backend(), addresses["two"], world.gateway)
    (network,) = networks_of(docker_client, installation)
    run("nft", "delete", "table", "inet", table_of(network))

    await first.look_after_networks()

    assert reached(agent, targets, targets) == set(targets)


async def test_without_what_the_others_were_told_a_worker_takes_it_away(
    *,
    spawn: Spawn,
    make_backend: MakeBackend,
    world: World,
    targets: dict[str, str],
    addresses: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the tests above are worth."""
    one, two = make_backend(), make_backend()
    agent = await _agent(spawn, two, addresses["two"], world.gateway)
    monkeypatch.setattr(container_answers, "_ELEMENT", re.compile("nothing is read"))

    await _agent(spawn, one, addresses["one"], world.gateway)

    assert reached(agent, targets, ["one"]) == {"one"}


async def test_an_answer_that_closes_stays_too(
    *,
    spawn: Spawn,
    make_backend: MakeBackend,
    docker_client: docker.DockerClient,
    installation: str,
    world: World,
) -> None:
    """The database's address, as one worker was told, is closed for the agents of all."""
    policy = {"allowlist": ["10.66.0.0/16"]}
    with _told(CLOSED["10/8"]):
        await spawn(make_backend(closed=[f"database.example:{PORT}"]), network_policy=policy)
    agent = await spawn(make_backend(), network_policy=policy)

    assert len(networks_of(docker_client, installation)) == 1
    assert "10/8" not in reached(agent, world.targets, {"gateway"})


def test_answers_have_a_limit_that_the_next_one_renews(installation: str) -> None:
    table = container_network.table_prefix(installation) + "0123456789ab"
    one = Openings(gateways=[Endpoint(IPv4Address("192.0.2.1"), 80)], nameservers=[IPv4Address("192.0.2.53")])
    name = container_answers.answers_table(table)
    limit = container_answers.KEPT_S
    aged = container_answers.record(table, one).replace(f"{limit}s", "60s")
    for text in (aged, container_answers.record(table, one)):
        _load(text)
    listing = run("nft", "--numeric", "list", "table", "inet", name)
    run("nft", "delete", "table", "inet", name)

    left = [int(seconds) for seconds in re.findall(r"expires (\d+)s", listing)]
    assert len(left) == 2
    assert all(limit - 60 < seconds <= limit for seconds in left)


def _load(text: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)
