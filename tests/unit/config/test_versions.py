"""Two files that say the same are one stored version, and what was stored comes back as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hatchway.config.loading import load
from hatchway.config.schema import Config
from hatchway.config.versions import canonical_json, capacities, from_stored, to_stored
from hatchway.errors import ConfigError
from hatchway.store.config_versions import Capacity

EXAMPLES = Path(__file__).parents[3] / "examples"
BASE: dict[str, Any] = {
    "version": 1,
    "scalers": [{"name": "m", "type": "bare-metal", "maxAgents": 4, "labelSets": [{"labels": ["linux"]}]}],
}


def config(**scaler: Any) -> Config:
    return Config.model_validate({**BASE, "scalers": [{**BASE["scalers"][0], **scaler}]})


@pytest.mark.parametrize("name", ["laptop.yaml", "docker.yaml"])
def test_what_was_stored_comes_back_as_it_was_by_way_of_the_database(name: str) -> None:
    loaded = load(EXAMPLES / name)
    stored = to_stored(loaded)

    again = from_stored(json.loads(canonical_json(stored.content)))

    assert again == loaded
    assert to_stored(again) == stored


def test_a_default_that_is_spelled_out_is_the_same_version() -> None:
    plain, spelled = config(), config(maxConcurrentSpawns=8, hosts=[], platform=None)

    assert to_stored(plain) == to_stored(spelled)
    assert "maxConcurrentSpawns" not in to_stored(spelled).content["scalers"][0]


@pytest.mark.parametrize("change", [{"maxAgents": 5}, {"name": "n"}, {"labelSets": [{"labels": ["Linux"]}]}])
def test_any_difference_is_another_version(change: dict[str, Any]) -> None:
    assert to_stored(config()).sha256 != to_stored(config(**change)).sha256


def test_the_digest_does_not_hang_on_the_order_of_keys() -> None:
    turned = Config.model_validate({"scalers": [dict(reversed(BASE["scalers"][0].items()))], "version": 1})

    assert to_stored(turned).sha256 == to_stored(config()).sha256


def test_the_keys_are_the_files_own() -> None:
    stored = to_stored(config(maxLifetimeSeconds=60, labelSets=[{"labels": ["x"], "runAsRoot": True}])).content

    assert stored["scalers"][0]["maxLifetimeSeconds"] == 60
    assert stored["scalers"][0]["labelSets"] == [{"labels": ["x"], "runAsRoot": True}]


def test_content_of_a_newer_release_is_refused_with_what_is_not_understood() -> None:
    newer = {**BASE, "scalers": [{**BASE["scalers"][0], "teleport": "hunter2"}]}

    with pytest.raises(ConfigError, match="newer") as refused:
        from_stored(newer)

    assert "scalers[0].teleport: unknown key" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_caps_are_the_global_one_each_pools_and_each_scalers() -> None:
    scaler = BASE["scalers"][0]
    capped = Config.model_validate(
        {
            **BASE,
            "globalMaxAgents": 3,
            "globalResourceCap": {"cpus": 16, "memory": "64g"},
            "machinePools": [{"name": "rack", "maxAgents": 2, "memory": "8Gi"}, {"name": "attic", "cpus": "1500m"}],
            "scalers": [
                {**scaler, "machinePool": "rack"},
                {**scaler, "name": "n", "maxAgents": 0, "resourceCap": {"memory": "512m"}},
            ],
        }
    )

    caps = capacities(capped)

    assert caps == [
        Capacity("global", max_agents=3, max_mcpu=16_000, max_mem_bytes=64 * 2**30),
        Capacity("pool:rack", max_agents=2, max_mem_bytes=8 * 2**30),
        Capacity("pool:attic", max_mcpu=1500),
        Capacity("scaler:m", scaler="m", pool="pool:rack", max_agents=4, backend_type="bare-metal"),
        Capacity("scaler:n", scaler="n", max_agents=0, max_mem_bytes=512 * 2**20, backend_type="bare-metal"),
    ]
