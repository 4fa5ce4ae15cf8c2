"""The example files load and serve the jobs that their comments speak of, and the documentation knows every key."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from hatchway.config.ec2_schema import Ec2LabelSet, Ec2Scaler, Offer, RootVolume
from hatchway.config.event_schema import ProvisioningTarget
from hatchway.config.loading import load
from hatchway.config.schema import (
    Backoff,
    Config,
    FileContext,
    LabelSet,
    MachinePool,
    Reaper,
    RegistryAuthConfig,
    ResourceCap,
    Scaler,
    WarmPool,
)
from hatchway.config.versions import capacities
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


def served_by(labels: list[str], *, exclude: list[str] | None = None, role: str | None = None) -> list[tuple[str, int]]:
    scalers = load(EXAMPLES / "fleet.yaml").scalers
    found = match(labels, exclude or [], role, scalers, default_platform="linux/amd64")
    return [(candidate.scaler.name, candidate.label_set_index) for candidate in found]


@pytest.mark.parametrize(
    ("labels", "role", "served"),
    [
        (["linux"], None, [("containers", 0), ("metal", 0), ("containers", 1)]),
        (["container"], None, [("containers", 0), ("containers", 1)]),
        (["container", "large"], None, [("containers", 1)]),
        (["metal"], None, [("metal", 0)]),
        (["gpu"], None, [("gpu", 0)]),
        (["gpu", "untrusted"], None, []),
        (["production"], None, []),
        (["production"], "deploy", [("deploy", 0)]),
    ],
)
def test_the_fleet_serves_whom_its_comments_speak_of(
    labels: list[str], role: str | None, served: list[tuple[str, int]]
) -> None:
    assert served_by(labels, role=role) == served


def test_the_fleets_rack_is_one_cap_of_two_scalers_and_its_warm_agents_are_small_containers() -> None:
    config = load(EXAMPLES / "fleet.yaml")

    caps = {cap.scope: cap for cap in capacities(config)}
    containers = config.scaler("containers")

    assert {caps[f"scaler:{name}"].pool for name in ("containers", "metal")} == {"pool:rack"}
    assert (caps["pool:rack"].max_agents, caps["pool:rack"].max_mcpu) == (24, 32_000)
    assert (caps["global"].max_agents, caps["global"].max_mem_bytes) == (40, 384 * 2**30)
    assert containers is not None
    assert containers.warm_pool is not None
    assert containers.warm_pool.idle_timeout == timedelta(minutes=10)
    assert containers.warm_label_set is containers.label_sets[0]
    assert (config.backoff.base, config.backoff.max) == (timedelta(seconds=20), timedelta(minutes=10))


DOCUMENT = (EXAMPLES.parent / "docs" / "configuration.md").read_text()
DEFAULTS = re.compile(r"^\| `(?P<key>\w+)` \| (?P<default>[^|]+) \| [^|]+ \|$", re.MULTILINE)


def keys_of(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


@pytest.mark.parametrize(
    "model",
    [
        Config,
        Scaler,
        LabelSet,
        MachinePool,
        ResourceCap,
        WarmPool,
        Backoff,
        Reaper,
        RegistryAuthConfig,
        FileContext,
        ProvisioningTarget,
        Ec2Scaler,
        Ec2LabelSet,
        Offer,
        RootVolume,
    ],
    ids=lambda model: model.__name__,
)
def test_every_key_is_in_the_documentation(model: type[BaseModel]) -> None:
    assert {key for key in keys_of(model) if f"`{key}`" not in DOCUMENT} == set()


def documented() -> dict[str, str]:
    """Each key of a table and its default, as the document says it."""
    return {row["key"]: row["default"] for row in DEFAULTS.finditer(DOCUMENT)}


@pytest.mark.parametrize("model", [Scaler, WarmPool, Backoff, Reaper], ids=lambda model: model.__name__)
def test_every_numbers_default_is_the_documented_one(model: type[BaseModel]) -> None:
    said = documented()

    for name, field in model.model_fields.items():
        if isinstance(field.default, int):
            assert said[field.alias or name] == str(field.default).lower()


@pytest.mark.parametrize("name", ["laptop.yaml", "docker.yaml", "fleet.yaml", "aws.yaml"])
def test_the_documentation_points_at_each_example(name: str) -> None:
    assert f"[examples/{name}](../examples/{name})" in DOCUMENT


@pytest.mark.parametrize(
    "text", re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL), ids=lambda text: text.split(":")[0]
)
def test_what_the_documentation_shows_is_read_without_a_fault(text: str, tmp_path: Path) -> None:
    whole = "version: 1\nscalers: [{name: m, type: bare-metal, maxAgents: 1, labelSets: [{labels: [linux]}]}]\n"
    file = tmp_path / "shown.yaml"
    file.write_text(text if "scalers:" in text else whole + text)

    assert load(file).scalers
