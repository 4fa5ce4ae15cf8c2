"""Scalers and specs for instances of the fake cloud."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from hatchway.backends.base import SpawnSpec
from hatchway.backends.ec2 import Pace
from hatchway.config.schema import LabelSet, Scaler
from tests.support.fake_ec2.images import AMI

SCALER = "aws"
REGION = "eu-central-1"
QUICK = Pace(visible_after=1.0, poll=0.1, look_every=0.05, longest_pause=0.3)
"""Of a cloud that shows everything within half a second."""


def ec2_scaler(url: str, **keys: Any) -> dict[str, Any]:
    """A scaler of one label set; keys of `labelSet` and `ec2` go into those."""
    label_set, ec2 = keys.pop("labelSet", {}), keys.pop("ec2", {})
    return {
        "name": SCALER, "type": "ec2", "maxAgents": 100, "platform": "linux/amd64",
        "ec2": {"region": REGION, "endpointUrl": url},
        "labelSets": [
            {
                "labels": ["linux"],
                "ec2": {
                    "ami": AMI, "offers": [{"instanceType": "m7i.large"}], "subnets": ["subnet-0123abcd"],
                    "securityGroups": ["sg-0123abcd"], **ec2,
                },
                **label_set,
            }
        ],
        **keys,
    }  # fmt: skip


def ec2_spec(
    scaler: dict[str, Any], agent_id: str, env: Mapping[str, str], installation: str, **keys: Any
) -> SpawnSpec:  # fmt: skip
    parsed = Scaler.model_validate(scaler)
    label_set: LabelSet = parsed.label_sets[0]
    return SpawnSpec(
        agent_id=agent_id, scaler=parsed, label_set=label_set, labels=("linux",), installation_id=installation, env=env,
        secret_values=keys.pop("secret_values", frozenset()), stop_grace=timedelta(seconds=1), **keys,
    )  # fmt: skip
