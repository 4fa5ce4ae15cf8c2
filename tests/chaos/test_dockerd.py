"""A real Docker daemon that is killed, restarted and stopped while its containers are at work: one of the test's own.

With live-restore its containers outlive it; without, it ends them when it comes up again, as most installations have
it. Both are faults of the engine: nothing may be made twice, nothing may stay, and whoever lost its job is told so.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from hatchway.client import ProvisionFailed, Started
from hatchway.dev import images
from hatchway.errors import ErrorType
from hatchway.model import ProvisionState
from tests.support.chaos import guarantees
from tests.support.chaos.campaign import Campaign, end_of
from tests.support.chaos.cells import LOST, Cell
from tests.support.chaos.checker import Ended, judge
from tests.support.chaos.dockerd import Dockerd
from tests.support.chaos.evidence import Witness, gather
from tests.support.chaos.faults import Action, Component
from tests.support.chaos.fleet import Fleet, new_job, running_fleet
from tests.support.chaos.passes import settle
from tests.support.chaos.points import Point
from tests.support.chaos.processes import signal_agent
from tests.support.chaos.scalers import DOCKER, Docker
from tests.support.docker_fixtures import import_image
from tests.support.namespaces import unless_slow, until
from tests.support.proxy import FaultProxy

POINTS = (Point.P3, Point.P4, Point.P5, Point.P6, Point.P7, Point.P8)
RUNNING = {Point.P4, Point.P5, Point.P6}
"""Where the agent runs and has not done its job."""
LIVE_RESTORE = pytest.mark.parametrize("live_restore", [False, True], ids=["without live-restore", "live-restore"])
LONG_S, SHORT_S = 300.0, 12.0


@dataclass(frozen=True, slots=True)
class DaemonCell(Cell):
    """A daemon that comes up again without live-restore ends the containers that run: their jobs are lost."""

    live_restore: bool

    @property
    def ends(self) -> set[str]:
        ended = self.action is not Action.PAUSE and not self.live_restore and self.point in RUNNING
        return {*LOST, "completed"} if ended else {"completed"}


def cells(*, live_restore: bool) -> list[Cell]:
    everything = os.environ.get("CHAOS_CELLS") == "all"
    actions = (Action.KILL, Action.RESTART, Action.PAUSE) if everything else (Action.KILL,)
    return [DaemonCell(Component.ENGINE, action, point, live_restore) for action in actions for point in POINTS]


@asynccontextmanager
async def fleet_on(daemon: Dockerd) -> AsyncIterator[Fleet]:
    client = daemon.client()
    try:
        image = await asyncio.to_thread(import_image, client, "agent", images.agent_image())
    finally:
        client.close()
    with FaultProxy(daemon.socket) as link:
        async with running_fleet(docker=Docker(link, image, daemon.address, daemon)) as fleet:
            yield fleet


def containers(daemon: Dockerd) -> dict[str, list[str]]:
    """Agent id -> the ids of its containers, in whatever state."""
    client = daemon.client()
    try:
        found: dict[str, list[str]] = {}
        for container in client.containers.list(all=True, ignore_removed=True):
            found.setdefault(container.labels["kici-agent-id"], []).append(str(container.id))
        return found
    finally:
        client.close()


@pytest.mark.needs("docker", "root")
@pytest.mark.scenario("S01", "S05", "S24")
@pytest.mark.timeout(900)
@LIVE_RESTORE
async def test_a_docker_daemon_that_dies_at_whatever_point_leaves_nothing_and_makes_nothing_twice(
    live_restore: bool,
) -> None:
    async with Dockerd(live_restore=live_restore) as daemon, fleet_on(daemon) as fleet:
        campaign = Campaign(fleet)
        chosen = cells(live_restore=live_restore)

        await campaign.run(chosen)

        if os.environ.get("CHAOS_CELLS") == "all":
            section = "dockerd live-restore" if live_restore else "dockerd"
            guarantees.write(section, guarantees.engine(campaign.results, guarantees.DAEMON))
        assert containers(daemon) == {}
        assert [str(violation) for violation in campaign.violations] == []
        assert [str(result) for result in campaign.results if not result.green] == []
        assert len(campaign.results) == len(chosen)


async def _at_work(fleet: Fleet, seconds: float) -> Started:
    started = await fleet.provision(new_job("busy", seconds), DOCKER)

    async def active() -> bool:
        status = await unless_slow(fleet.hatchway.status(started.workflow_id))
        return status is not None and status.state is ProvisionState.ACTIVE

    await until(active, what="the agent at work")
    return started


async def _words_of(fleet: Fleet, started: Started) -> str:
    """The failure's sentence."""
    with pytest.raises(ProvisionFailed) as failed:
        await fleet.hatchway.outcome(started)
    assert failed.value.error_type == ErrorType.AGENT_LOST
    return str(failed.value)


@pytest.mark.needs("docker", "root")
@pytest.mark.scenario("S24")
@pytest.mark.timeout(300)
@LIVE_RESTORE
async def test_a_busy_agent_whose_container_ended_while_the_daemon_was_dead_is_told_as_lost_with_its_code(
    live_restore: bool,
) -> None:
    """The other one, whose container goes on where the daemon lets it, does its job as if nothing had been."""
    code = 128 + (signal.SIGKILL if live_restore else signal.SIGTERM)  # which a daemon that comes up sends them
    async with Dockerd(live_restore=live_restore) as daemon, fleet_on(daemon) as fleet, Witness(fleet) as witness:
        lost = await _at_work(fleet, LONG_S)
        other = await _at_work(fleet, SHORT_S)  # last: it has that long until the daemon dies
        before = containers(daemon)

        await daemon.kill()
        if live_restore:
            assert signal_agent(lost.agent_id, signal.SIGKILL)
        await daemon.start()
        ends = [Ended("", one.agent_id, await end_of(fleet, one)) for one in (lost, other)]
        words = await _words_of(fleet, lost)
        await settle(fleet)

        assert Counter(map(len, before.values())) == {1: 2}
        assert f"ended with exit code {code} while it was at work" in words
        assert [one.end for one in ends] == ["AgentLost", "completed" if live_restore else "AgentLost"]
        assert containers(daemon) == {}
        assert [str(violation) for violation in judge(await gather(fleet, witness, ends))] == []
