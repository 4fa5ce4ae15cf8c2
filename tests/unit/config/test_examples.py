"""The example files load, and serve the jobs that their comments speak of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hatchway.config.loading import load
from hatchway.matching import match
from hatchway.resources import Shape, shape

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_loads(path: Path) -> None:
    assert load(path).scalers


@pytest.mark.parametrize("labels", [["linux"], []])
def test_the_laptop_runs_a_short_command_for_a_linux_job(labels: list[str]) -> None:
    candidate, *_ = match(labels, [], None, load(EXAMPLES / "laptop.yaml").scalers, default_platform="linux/amd64")

    command = candidate.label_set.env["HATCHWAY_AGENT_COMMAND"]

    assert isinstance(command, str)
    assert json.loads(command) == ["/bin/sh", "-c", "echo hello; sleep 1"]
    assert candidate.label_set.user == "nobody"
    assert candidate.scaler.max_agents == 4


def test_the_laptop_has_an_agent_that_stays_only_for_the_job_that_asks_for_it() -> None:
    scalers = load(EXAMPLES / "laptop.yaml").scalers

    [stays] = match(["until-released"], [], None, scalers, default_platform="linux/amd64")
    linux = match(["linux"], [], None, scalers, default_platform="linux/amd64")

    assert "HATCHWAY_AGENT_COMMAND" not in stays.label_set.env
    assert stays.label_set not in [candidate.label_set for candidate in linux]


def test_docker_leaves_the_large_set_to_the_jobs_that_ask_for_it() -> None:
    config = load(EXAMPLES / "docker.yaml")

    small = match(["linux", "container"], [], None, config.scalers, default_platform="linux/amd64")
    large = match(["linux", "large"], [], None, config.scalers, default_platform="linux/amd64")

    assert [c.label_set.labels for c in small[:1]] == [["linux", "container"]]
    assert [shape(None, c.label_set.resources, config.defaults.resources) for c in large] == [
        Shape(2000, 2 * 2**30, 4000, 8 * 2**30)
    ]
