"""A network that the engine made and does not show as it was asked for is not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from hatchway.backends.base import SpawnSpec
from hatchway.backends.container_engine import Engine
from hatchway.backends.container_firewall import Firewall
from hatchway.backends.container_network import BRIDGE_NAME, Networks
from hatchway.config.schema import LabelSet, Scaler, ScalerType
from hatchway.errors import PermanentSpawnError


class Api:
    """What is asked of an engine about networks. `shows`: what it lists of one that it was told to make."""

    def __init__(self, shows: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        self._shows = shows
        self.made: list[dict[str, Any]] = []

    def create_network(self, name: str, **settings: Any) -> None:
        self.made.append({"Name": name, **settings})

    def networks(self) -> list[dict[str, Any]]:
        return [shown for made in self.made if (shown := self._shows(made)) is not None]

    def remove_network(self, name: str) -> None:
        self.made = [made for made in self.made if made["Name"] != name]


class StandIn:
    """An engine without a socket: its calls go straight to `api`."""

    address = "unix:///stand-in"

    def __init__(self, api: Api) -> None:
        self._api = api

    async def call(self, doing: str, work: Callable[[Api], Any], **_: Any) -> Any:
        return work(self._api)


class NoFirewall(Firewall):
    """One that could be used, and must not come to it."""

    def check(self) -> None:
        return

    def ensure(self, rules: object) -> None:
        raise AssertionError("rules were made for a network that is not there")


def _as_made(made: dict[str, Any]) -> dict[str, Any]:
    return {
        "Name": made["Name"], "Driver": "bridge", "Labels": made["labels"], "Options": made["options"],
        "EnableIPv6": False, "Created": "2031-05-01T12:00:00Z",
        "IPAM": {"Config": [{"Subnet": "172.30.0.0/16", "Gateway": "172.30.0.1"}]},
    }  # fmt: skip


def _without_its_bridge(made: dict[str, Any]) -> dict[str, Any]:
    """As Podman answers: its bridge is made with the first container, and has another name."""
    shown = _as_made(made)
    return {**shown, "Options": {name: value for name, value in shown["Options"].items() if name != BRIDGE_NAME}}


def _spec() -> SpawnSpec:
    label_set = LabelSet(labels=["linux"], image="x")
    scaler = Scaler(name="s", type=ScalerType.CONTAINER, max_agents=1, label_sets=[label_set])
    return SpawnSpec(
        agent_id="a", scaler=scaler, label_set=label_set, labels=("linux",), installation_id="i", env={}, image="x"
    )


@pytest.mark.parametrize("shows", [_without_its_bridge, lambda _: None], ids=["without its bridge", "not at all"])
async def test_a_network_that_is_not_read_back_as_it_was_made_stops_the_spawn_for_good_and_is_removed(
    shows: Callable[[dict[str, Any]], dict[str, Any] | None],
) -> None:
    api = Api(shows)
    networks = Networks(cast(Engine, StandIn(api)), "i", NoFirewall())

    with pytest.raises(PermanentSpawnError, match=r"does not show the network.*as Podman does not.*Docker engine"):
        await networks.attach(_spec(), "http://192.0.2.1:8780")

    assert api.made == []


async def test_one_that_is_read_back_is_looked_for_in_this_workers_namespace_next() -> None:
    """What the test above is worth: the same engine, telling the truth, gets further."""
    api = Api(_as_made)

    with pytest.raises(PermanentSpawnError, match="not in this worker's network namespace"):
        await Networks(cast(Engine, StandIn(api)), "i", NoFirewall()).attach(_spec(), "http://192.0.2.1:8780")

    assert len(api.made) == 1
