"""A real engine that goes away at each point around its two calls.

The link to it is cut or hung, which is how a daemon that is killed, restarted or stopped looks from here; the engine
itself is this machine's, and nothing is done to it.
"""

from __future__ import annotations

import os

import docker
import pytest

from tests.support.chaos import guarantees
from tests.support.chaos.campaign import Campaign
from tests.support.chaos.cells import Cell
from tests.support.chaos.faults import Action, Component
from tests.support.chaos.fleet import running_fleet
from tests.support.chaos.points import Point
from tests.support.chaos.scalers import Docker
from tests.support.docker_fixtures import bridge_address
from tests.support.proxy import FaultProxy

CELLS = [
    Cell(Component.ENGINE, action, point)
    for action in (Action.CUT, Action.PAUSE)
    for point in (Point.P3, Point.P4, Point.P5, Point.P6, Point.P7, Point.P8)
]


def containers(client: docker.DockerClient, installation: str) -> list[str]:
    found = client.containers.list(all=True, filters={"label": f"hatchway.installation={installation}"})
    return [str(container.name) for container in found]


@pytest.mark.needs("docker")
@pytest.mark.scenario("S01", "S05", "S07")
async def test_an_engine_that_goes_away_leaves_no_container_and_costs_no_job(
    docker_client: docker.DockerClient, agent_image: str, engine_proxy: FaultProxy
) -> None:
    engine = Docker(engine_proxy, agent_image, bridge_address(docker_client))
    async with running_fleet(docker=engine) as fleet:
        campaign = Campaign(fleet)

        await campaign.run(CELLS)

        if os.environ.get("CHAOS_CELLS") == "all":
            guarantees.write("engine", guarantees.engine(campaign.results, guarantees.LINK))
        installation = str(await fleet.db.fetch_value("select installation_id::text from hatchway_installation"))
        assert containers(docker_client, installation) == []
        assert [str(violation) for violation in campaign.violations] == []
        assert [str(result) for result in campaign.results if not result.green] == []
