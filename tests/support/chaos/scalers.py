"""What a fleet is configured with: its scalers, their caps, and windows as short as its heartbeats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.chaos.dockerd import Dockerd
from tests.support.chaos.entry import CLOUD_HOST
from tests.support.chaos.journal import job_script
from tests.support.proxy import FaultProxy

FOREIGN = "another-installation"
SECRET = "chaos-registry-token-that-must-stay-secret"
METAL, CLOUD, APART, DOCKER = "metal", "cloud", "apart", "docker"
MOST = {METAL: 3, CLOUD: 6, APART: 3, DOCKER: 2}
MOST_OF_ALL = 9
WINDOWS = {
    "agentTimeoutSeconds": 6, "instanceTimeoutSeconds": 5, "flapGraceSeconds": 8, "strandedTimeoutSeconds": 60,
    "reattemptSeconds": 5,
}  # fmt: skip
"""The reaper's, as much shorter than the defaults as the heartbeats are: faults last 1.5 s and must mean nothing."""

TIMES = {
    "stopGraceSeconds": 1, "spawnTimeoutSeconds": 8, "adoptionTimeoutSeconds": 30, "maxConcurrentSpawns": 8,
    "claimTtlSeconds": 60, "agentTokenTtlSeconds": 60,
}  # fmt: skip


def config(journal: Path) -> dict[str, Any]:
    env = {"HATCHWAY_AGENT_COMMAND": json.dumps(["/bin/sh", "-c", job_script(journal)])}
    container = {
        "type": "container", "host": CLOUD_HOST, "networkIsolation": False, "allowJobImage": True, **TIMES,
    }  # fmt: skip
    image = "registry.invalid/team/base:1"
    return {
        "version": 1,
        "globalMaxAgents": MOST_OF_ALL,
        "reaper": WINDOWS,
        "backoff": {"baseSeconds": 1, "maxSeconds": 2},
        "secrets": {"contexts": {"registry": {"type": "env", "registries": ["registry.invalid"]}}},
        "scalers": [
            {
                "name": METAL, "type": "bare-metal", "maxAgents": MOST[METAL], **TIMES,
                "labelSets": [{"labels": [METAL], "user": "nobody", "env": env}],
            },
            {
                "name": CLOUD, "maxAgents": MOST[CLOUD], **container,
                "labelSets": [{"labels": [CLOUD], "image": image, "env": env}],
            },
        ],
    }  # fmt: skip


def apart(link: str, of_cloud: Mapping[str, Any]) -> dict[str, Any]:
    """The scaler whose agents have a link of their own."""
    label_set = {**of_cloud["labelSets"][0], "labels": [APART]}
    return {**of_cloud, "name": APART, "maxAgents": MOST[APART], "orchestratorUrl": link, "labelSets": [label_set]}


@dataclass(frozen=True)
class Docker:
    """A real engine, reached over a link of the fleet's own that can be cut and hung: nothing is done to the engine."""

    engine: FaultProxy
    image: str
    """Its entrypoint is the reference agent."""
    address: str
    """This machine's, as containers on the engine's default bridge see it."""
    daemon: Dockerd | None = None
    """A daemon of the fleet's own is killed and stopped itself; of the machine's only the link is hit."""

    def scaler(self, link: str) -> dict[str, Any]:
        command = ["/bin/sh", "-c", 'sleep "${HATCHWAY_JOB_ID##*_}"']
        label_set = {
            "labels": [DOCKER], "image": self.image, "pullPolicy": "Never",
            "env": {"HATCHWAY_AGENT_COMMAND": json.dumps(command)},
        }  # fmt: skip
        return {
            "name": DOCKER, "type": "container", "host": f"tcp://{self.engine.address}", "networkIsolation": False,
            "maxAgents": MOST[DOCKER], "orchestratorUrl": link, "labelSets": [label_set], **TIMES,
            "spawnTimeoutSeconds": 20,
        }  # fmt: skip
