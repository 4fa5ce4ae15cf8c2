"""What pools, warm pools and windows may say. What they may not, with its words, is in `broken/`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from hatchway import heartbeats
from hatchway.config.checks import check_config
from hatchway.config.document import spell
from hatchway.config.partial import readable_pools
from hatchway.config.schema import Config
from hatchway.gateway.settings import GatewaySettings

SMALL = {"cpus": 1, "memory": "1g"}


def config(*label_sets: dict[str, Any], top: dict[str, Any] | None = None, **scaler: Any) -> Config:
    return Config.model_validate(
        {
            "version": 1,
            **(top or {}),
            "scalers": [
                {
                    "name": "m", "type": "bare-metal", "maxAgents": 4,
                    "labelSets": list(label_sets) or [{"labels": ["a"]}], **scaler,
                }
            ],
        }
    )  # fmt: skip


def container(*label_sets: dict[str, Any], **scaler: Any) -> Config:
    return config(*label_sets, type="container", networkIsolation=False, **scaler)


def found(of: Config) -> list[str]:
    return [f"{spell(path)}: {message}" for path, message in check_config(of)]


@pytest.mark.parametrize(
    "of",
    [
        config({"labels": ["a"], "resources": SMALL}, warmPool={"size": 4}),
        config(warmPool={"size": 2}, top={"defaults": {"resources": SMALL}}),
        config({"labels": ["a"], "resources": {"cpus": 1}}, warmPool={"size": 2},
               top={"defaults": {"resources": {"memory": "1g"}}}),
        config({"labels": ["a"], "resources": SMALL}, {"labels": ["a", "B"], "resources": SMALL},
               warmPool={"size": 1, "labels": ["b", "A"]}),
        config(warmPool={"size": 0}),
        config({"labels": ["a"], "resources": SMALL}, warmPool={"size": 1}, resourceCap=SMALL,
               top={"globalResourceCap": SMALL}),
        container({"labels": ["a"], "image": "alpine", "resources": SMALL}, warmPool={"size": 1}, allowJobImage=True),
        container({"labels": ["a"]}, warmPool={"size": 0}, allowJobImage=True),
        config(machinePool="p", top={"machinePools": [{"name": "p", "maxAgents": 0}]}),
        config(top={"backoff": {"baseSeconds": 60, "maxSeconds": 60}}),
        config(top={"reaper": {"flapGraceSeconds": 5, "strandedTimeoutSeconds": 5, "outcomeRetentionSeconds": 600}}),
    ],
)  # fmt: skip
def test_what_means_something_is_let_through(of: Config) -> None:
    assert found(of) == []


@pytest.mark.parametrize(
    ("windows", "places"),
    [
        ({"agentTimeoutSeconds": 29, "flapGraceSeconds": 29}, ["reaper.agentTimeoutSeconds"]),
        ({"agentTimeoutSeconds": 1, "flapGraceSeconds": 59}, ["reaper.agentTimeoutSeconds"]),
        ({"agentTimeoutSeconds": 60, "flapGraceSeconds": 1}, []),
        ({"agentTimeoutSeconds": 1, "flapGraceSeconds": 60}, []),
        ({"agentTimeoutSeconds": 1}, []),  # silence is judged by the longer of the two
        ({"instanceTimeoutSeconds": 19}, ["reaper.instanceTimeoutSeconds"]),
        ({"instanceTimeoutSeconds": 20}, []),
    ],
    ids=str,
)
def test_a_window_spans_two_heartbeats(windows: dict[str, int], places: list[str]) -> None:
    """Between two of them an agent at work is silent, and one whose workflow is gone would be ended."""
    said = found(config(top={"reaper": windows}))

    assert [line.partition(": ")[0] for line in said] == places


def test_the_heartbeats_that_windows_are_held_to_are_those_that_gateways_ask_for() -> None:
    settings = GatewaySettings()

    assert (settings.heartbeat_interval, settings.instance_heartbeat) == (heartbeats.AGENT, heartbeats.INSTANCE)


def test_a_content_that_stands_in_no_file_is_checked_like_a_file() -> None:
    wrong = config(
        warmPool={"size": 9}, machinePool="nowhere",
        top={"backoff": {"maxSeconds": 1}, "machinePools": [{"name": "p", "cpus": 1}, {"name": "P", "cpus": 1}]},
    )  # fmt: skip

    places = [line.partition(": ")[0] for line in found(wrong)]

    assert places == [
        "machinePools[1].name", "backoff.maxSeconds", "scalers[0].machinePool", "scalers[0].warmPool.size",
        "scalers[0].warmPool",
    ]  # fmt: skip


def test_a_pool_that_cannot_be_read_accuses_nobody_who_names_it() -> None:
    pools, named = readable_pools([{"name": "good", "cpus": 1}, {"name": "bad", "cpus": -1}, "neither", {"cpus": 1}])

    assert [(index, pool.name) for index, pool in pools] == [(0, "good")]
    assert named.keys() == {"good", "bad"}
    assert named["bad"] is None


@pytest.mark.parametrize(
    ("spawn_timeout", "retention", "kept"),
    [
        (300, None, timedelta(days=1)), (86_400, None, timedelta(days=2)), (300, 600, timedelta(minutes=10)),
    ],
)  # fmt: skip
def test_outcomes_are_kept_a_day_or_twice_the_longest_spawn_unless_it_is_said(
    spawn_timeout: int, retention: int | None, kept: timedelta
) -> None:
    reaper = {} if retention is None else {"outcomeRetentionSeconds": retention}

    assert config(top={"reaper": reaper}, spawnTimeoutSeconds=spawn_timeout).outcome_retention == kept


@pytest.mark.parametrize("warm", [None, {"size": 1, "labels": ["b"]}, {"size": 1}])
def test_warm_agents_are_of_one_label_set_or_of_none(warm: dict[str, Any] | None) -> None:
    scaler = config({"labels": ["a"]}, {"labels": ["B"]}, **({"warmPool": warm} if warm else {})).scalers[0]

    assert scaler.warm_label_set is (scaler.label_sets[1] if warm and "labels" in warm else None)
