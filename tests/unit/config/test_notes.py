"""What is said of a configuration that is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from hatchway.config.notes import notes
from hatchway.config.schema import Config

HERE, THERE = "unix:///run/docker.sock", "tcp://192.0.2.1:2375"


def _config(*scalers: dict[str, Any]) -> Config:
    common = {"type": "container", "maxAgents": 1, "networkIsolation": False}
    return Config.model_validate(
        {
            "version": 1,
            "scalers": [
                {"name": f"s{n}", "labelSets": [{"labels": [f"l{n}"], "image": "x"}], **common, **scaler}
                for n, scaler in enumerate(scalers)
            ],
        }
    )


@pytest.mark.parametrize(
    "scalers",
    [
        [{"host": HERE}, {"host": THERE}],
        [{}, {"host": HERE}],
        [{"host": HERE, "hosts": ["a", "b"]}, {"host": THERE, "hosts": ["b"]}],
    ],
    ids=["two", "the default and another", "one worker for both"],
)
def test_engines_that_one_worker_may_be_meant_to_serve_are_named(scalers: list[dict[str, Any]]) -> None:
    (said,) = notes(_config(*scalers, {"host": scalers[0].get("host"), "hosts": ["elsewhere"], "name": "third"}))

    assert "s0" in said
    assert "s1" in said
    assert "--host-id" in said


@pytest.mark.parametrize(
    "scalers",
    [
        [{"host": HERE}],
        [{"host": HERE}, {"host": HERE}],
        [{"host": HERE, "hosts": ["a"]}, {"host": THERE, "hosts": ["b"]}],
    ],
    ids=["one", "one engine", "a worker each"],
)
def test_nothing_is_said_where_every_worker_has_one_engine(scalers: list[dict[str, Any]]) -> None:
    assert notes(_config(*scalers)) == []
