"""As much of a broken configuration as can be read, so that one fault does not hide the others from the checks.

What the schema refuses is left out; where that leaves a required key empty, a stand-in takes its place. Nothing that is
made here is ever used as a configuration.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from hatchway.config.document import Path_
from hatchway.config.problems import ABSENT, problems, value_at
from hatchway.config.schema import MOST_AGENTS, MachinePool, Scaler, SecretsConfig

_ROUNDS = 5
"""Leaving a key out can make what held it incomplete: one round for each level, and no section has more than four."""


def readable_secrets(data: Any) -> SecretsConfig | None:
    """The `secrets` section without what cannot be read; None when nothing of it can."""
    for _ in range(_ROUNDS):
        try:
            return SecretsConfig.model_validate(data, by_alias=True, by_name=False)
        except ValidationError as e:
            data = _without(data, [path for path, _ in problems(e, data)])
    return None


M = TypeVar("M", bound=BaseModel)


def readable(model: type[M], data: Any) -> M | None:
    """A section as a whole; None when anything in it cannot be read. For what others are only measured against."""
    try:
        return model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError:
        return None


def readable_pools(data: Any) -> tuple[list[tuple[int, MachinePool]], dict[str, MachinePool | None]]:
    """The machine pools that can be read, with their index; and all that have a name, None for those that cannot."""
    found: list[tuple[int, MachinePool]] = []
    named: dict[str, MachinePool | None] = {}
    for index, entry in enumerate(data if isinstance(data, list) else []):
        pool = readable(MachinePool, entry)
        if pool is not None:
            found.append((index, pool))
            named.setdefault(pool.name, pool)
        elif isinstance(entry, dict) and isinstance(entry.get("name"), str):
            named[entry["name"]] = None
    return found, named


def readable_scaler(data: Any, index: int) -> Scaler | None:
    """The scaler without what cannot be read; None when too little of it can, as when its type is unknown."""
    data = _with_stand_ins(data, index)
    for _ in range(_ROUNDS):
        try:
            return Scaler.model_validate(data, by_alias=True, by_name=False)
        except ValidationError as e:
            data = _with_stand_ins(_without(data, [path for path, _ in problems(e, data)]), index)
    return None


def _with_stand_ins(data: Any, index: int) -> Any:
    """Stand-ins are unlike each other, so that no two scalers look the same because of them, and exceed no cap."""
    if not isinstance(data, dict):
        return data
    label_sets = data.get("labelSets")
    return {
        "name": f"unreadable-{index}",
        "maxAgents": MOST_AGENTS,
        **_with_ec2(data, EC2_STAND_INS),
        "labelSets": [
            {"labels": [f"unreadable-{index}-{place}"], **_with_ec2(label_set, EC2_SET_STAND_INS)}
            if isinstance(label_set, dict)
            else label_set
            for place, label_set in enumerate(label_sets if isinstance(label_sets, list) and label_sets else [{}])
        ],
    }


EC2_STAND_INS: dict[str, Any] = {"region": "eu-central-1"}
EC2_SET_STAND_INS: dict[str, Any] = {
    "ami": "ami-00000000",
    "offers": [{"instanceType": "unreadable.small"}],
    "subnets": ["subnet-00000000"],
    "securityGroups": ["sg-00000000"],
}


def _with_ec2(data: dict[str, Any], stand_ins: dict[str, Any]) -> dict[str, Any]:
    ec2 = data.get("ec2")
    return {**data, "ec2": {**stand_ins, **ec2}} if isinstance(ec2, dict) else data


def _without(data: Any, paths: list[Path_]) -> Any:
    """A copy of `data` without the keys at `paths`. A path that leads to no key is that of a missing one: what lacks it
    goes instead. Entries of a list take the whole list with them, because the others would move up to their index.
    """
    gone = {_key_of(path if value_at(data, path) is not ABSENT else path[:-1]) for path in paths}

    def copied(node: Any, path: Path_) -> Any:
        if isinstance(node, dict):
            return {key: copied(value, (*path, key)) for key, value in node.items() if (*path, key) not in gone}
        if isinstance(node, list):
            return [copied(value, (*path, index)) for index, value in enumerate(node)]
        return node

    return copied(data, ())


def _key_of(path: Path_) -> Path_:
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path
