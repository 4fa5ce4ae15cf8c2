"""What is said about a change before it is made."""

from __future__ import annotations

from typing import Any

import pytest

from hatchway.config.difference import Difference, difference
from hatchway.config.schema import Config
from hatchway.store.config_versions import ScopeUse


def scaler(name: str = "m", **keys: Any) -> dict[str, Any]:
    return {"name": name, "type": "bare-metal", "maxAgents": 4, "labelSets": [{"labels": ["linux", name]}], **keys}


def config(*scalers: dict[str, Any], **keys: Any) -> Config:
    return Config.model_validate({"version": 1, "scalers": list(scalers) or [scaler()], **keys})


def use(scope: str, agents: int = 0, mcpu: int = 0, mem_bytes: int = 0, *, retired: bool = False) -> ScopeUse:
    name = scope.removeprefix("scaler:") if scope.startswith("scaler:") else None
    return ScopeUse(scope, name, agents, mcpu, mem_bytes, accepting=not retired, retired=retired)


def between(before: Config | None, after: Config, *uses: ScopeUse) -> Difference:
    return difference(before, after, {one.scope: one for one in uses})


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {}, []),
        ({}, {"maxConcurrentSpawns": 8}, []),
        ({}, {"maxConcurrentSpawns": 9}, ["~ scalers[m].maxConcurrentSpawns: 8 -> 9"]),
        ({}, {"maxLifetimeSeconds": 60}, ["+ scalers[m].maxLifetimeSeconds: 60"]),
        ({"maxLifetimeSeconds": 60}, {}, ["- scalers[m].maxLifetimeSeconds: 60"]),
        ({}, {"mandatoryLabels": ["linux"]}, ['~ scalers[m].mandatoryLabels: [] -> ["linux"]']),
        ({}, {"warmPool": {"size": 2}}, ["+ scalers[m].warmPool"]),
        ({"warmPool": {"size": 2}}, {"warmPool": {"size": 0}}, ["~ scalers[m].warmPool.size: 2 -> 0"]),
        ({"hosts": ["a"]}, {"hosts": ["a", "b"]}, ['~ scalers[m].hosts: ["a"] -> ["a","b"]']),
        (
            {"labelSets": [{"labels": ["a"]}, {"labels": ["b"], "user": "ci"}]},
            {"labelSets": [{"labels": ["B"], "runAsRoot": True}, {"labels": ["c"]}]},
            [
                "- scalers[m].labelSets[a]",
                '~ scalers[m].labelSets[b].labels: ["b"] -> ["B"]',
                "- scalers[m].labelSets[b].user: ci",
                "~ scalers[m].labelSets[b].runAsRoot: false -> true",
                "+ scalers[m].labelSets[c]",
            ],
        ),
    ],
)
def test_keys_are_told_by_their_path(before: dict[str, Any], after: dict[str, Any], said: list[str]) -> None:
    found = between(config(scaler(**before)), config(scaler(**after)))

    assert sorted(map(str, found.changes)) == sorted(said)


def test_label_sets_with_the_same_labels_are_told_by_their_place() -> None:
    twice = [{"labels": ["a"]}, {"labels": ["a"], "excludeLabels": ["x"]}]
    changed = [twice[0], {**twice[1], "excludeLabels": ["y"]}]

    found = between(config(scaler(labelSets=twice)), config(scaler(labelSets=changed)))

    assert [str(change) for change in found.changes] == [
        '~ scalers[m].labelSets[1].excludeLabels: ["x"] -> ["y"]'
    ]  # fmt: skip


def test_a_long_value_is_cut_and_cannot_move_the_cursor_of_who_reads_it() -> None:
    found = between(
        config(), config(scaler(labelSets=[{"labels": ["linux", "m"], "env": {"A": "\x1b[2J" + "x" * 999}}]))
    )

    [line] = map(str, found.changes)
    assert len(line) < 200
    assert line.endswith("…")
    assert line.isprintable()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"globalMaxAgents": 9}, "global agents: no cap -> 9 (2 in use)"),
        (
            {"globalMaxAgents": 1},
            "global agents: no cap -> 1 "
            "(2 in use: nobody is stopped, and nobody is let in until it is under the cap)",
        ),
        ({"globalMaxAgents": 2}, "global agents: no cap -> 2 (2 in use)"),
        ({"globalResourceCap": {"cpus": "2500m"}}, "global CPUs: no cap -> 2.5 (1.5 in use)"),
        ({"globalResourceCap": {"memory": "4g"}}, "global memory: no cap -> 4Gi (512Mi in use)"),
        ({"machinePools": [{"name": "p", "memory": "1g"}]}, "pool:p memory: no cap -> 1Gi (0 in use)"),
    ],
)  # fmt: skip
def test_caps_are_told_with_what_is_in_use(keys: dict[str, Any], said: str) -> None:
    found = between(config(), config(**keys), use("global", 2, 1500, 512 * 2**20))

    assert [str(cap) for cap in found.caps] == [said]


def test_a_cap_that_goes_is_told_too() -> None:
    found = between(config(machinePools=[{"name": "p", "cpus": 4}]), config(), use("pool:p", 1, 3000))

    assert [str(cap) for cap in found.caps] == ["pool:p CPUs: 4 -> no cap (3 in use)"]


def test_scalers_that_leave_come_back_or_move_are_told_with_their_agents() -> None:
    pools = {"machinePools": [{"name": "p", "maxAgents": 9}]}
    before = config(scaler("leaves"), scaler("moves"), **pools)
    after = config(scaler("moves", machinePool="p"), scaler("returns"), scaler("new"), **pools)

    found = between(
        before, after, use("scaler:leaves", 3), use("scaler:moves", 1), use("scaler:returns", 2, retired=True)
    )

    assert (found.retires, found.returns, found.moves) == ({"leaves": 3}, {"returns": 2}, {"moves": 1})
    assert found.lines()[-3:] == [
        "scaler leaves retires: no new work, idle warm agents go, busy ones finish (3 agents now)",
        "scaler returns comes back (2 agents of it still run)",
        "scaler moves changes its machine pool: what runs (1 agent) counts where it was made, to its end",
    ]


def test_the_first_configuration_is_told_by_its_scalers_and_what_it_sets() -> None:
    found = between(None, config(scaler("a"), scaler("b"), globalMaxAgents=3))

    assert [str(change) for change in found.changes] == ["+ scalers[a]", "+ scalers[b]", "+ globalMaxAgents: 3"]


def test_no_key_of_a_stored_configuration_moves_the_cursor_of_who_reads_the_difference() -> None:
    before = config(scaler("a", labelSets=[{"labels": ["a\x1b[2J\nb"], "user": "ci"}]))

    lines = between(before, config(scaler("a", labelSets=[{"labels": ["b"], "user": "ci"}]))).lines()

    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
