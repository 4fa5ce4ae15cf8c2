"""What one provision costs on Temporal: counted by the server itself, not by us."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.api.enums.v1 import EventType

from hatchway.client import Started
from hatchway.dev.ports import free_port
from hatchway.dev.temporal import EmbeddedTemporal
from tests.support import lab as lab_module
from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces, until

MOST_ACTIONS = 9
MOST_EVENTS = 35
"""32 on a machine with nothing else to do; a busy one may split a workflow task in two."""

REQUEST: dict[str, Any] = {
    "labels": ["linux"],
    "job_id": "job-1",
    "run_id": "run-1",
    "container": {
        "image": "reg.local:5000/team/app:1",
        "auth": {"username": "ci", "tokenSecret": "vault:token"},
    },
}

CONFIG = {
    "version": 1,
    "secrets": {"contexts": {"vault": {"type": "env", "registries": ["reg.local:5000"]}}},
    "scalers": [{"name": "laptop", "type": "bare-metal", "maxAgents": 4, "labelSets": [{"labels": ["linux"]}]}],
}


@pytest.mark.usefixtures("unhurried")
async def test_a_provision_with_container_auth_stays_within_its_actions_and_events(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_module, "STICKY_FOR", timedelta(minutes=1))  # the one worker may be slow, and stays
    metrics_port = free_port()
    async with EmbeddedTemporal(tmp_path, persistent=False, ui=False, metrics_port=metrics_port) as server:
        namespaces = Namespaces(server.address)
        async with running_lab(namespaces, database_url, CONFIG) as lab:
            lab.environ["HATCHWAY_SECRET_TOKEN"] = "t0ken"
            namespace = lab.temporal.namespace
            before = await _actions(metrics_port, namespace)

            started = await lab.provision(**REQUEST)
            await _waits_for_its_agent(lab, started)
            await lab.adopt(started)
            await lab.complete(started)
            await lab.outcome(started)

            spent = await _settled(metrics_port, namespace, before)
            events = (await lab.handle(started).describe()).history_length
        namespaces.stop()
    assert sum(spent.values()) <= MOST_ACTIONS, spent
    assert events <= MOST_EVENTS
    # A counter that counted nothing would pass the limits too.
    assert spent["grpc_StartWorkflowExecution"] == 1
    assert spent["command_UpsertWorkflowSearchAttributes"] == 1
    assert spent["command_ScheduleActivityTask"] == 2
    assert spent["command_StartTimer"] == 1
    assert spent["grpc_SignalWorkflowExecution"] == 1


async def _waits_for_its_agent(lab: Lab, started: Started) -> None:
    """Seen in the history: a query would cost an action."""

    async def deadline_runs() -> bool:
        history = await lab.handle(started).fetch_history()
        return any(event.event_type == EventType.EVENT_TYPE_TIMER_STARTED for event in history.events)

    await until(deadline_runs)


async def _settled(port: int, namespace: str, before: dict[str, int]) -> dict[str, int]:
    """What was spent since `before`. The server adds to its page about once a second: read until nothing is added."""
    seen: list[dict[str, int]] = []

    async def twice_the_same() -> bool:
        await asyncio.sleep(2.5)
        seen.append(await _actions(port, namespace))
        return len(seen) > 1 and seen[-1] == seen[-2]

    await until(twice_the_same)
    return {kind: count - before.get(kind, 0) for kind, count in seen[-1].items()}


async def _actions(port: int, namespace: str) -> dict[str, int]:
    """The server's own `action` counter, by type."""
    async with httpx.AsyncClient() as http:
        page = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    found: dict[str, int] = {}
    for line in page.splitlines():
        kind = re.match(r'action\{action_type="([^"]+)",namespace="([^"]+)"', line)
        if kind and kind[2] == namespace.replace("-", "_"):
            found[kind[1]] = int(float(line.rsplit(" ", 1)[1]))
    return found
