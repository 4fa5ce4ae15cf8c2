"""The workflows with a scripted backend on a host that a worker has been heard of from, and no schedule."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from hatchway.cli import doctor_workflows
from hatchway.cli.doctor import CHECKS
from hatchway.cli.findings import Finding
from hatchway.store.presence import Presence
from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces

Look = Callable[[str], Awaitable[list[Finding]]]


@pytest.fixture
async def lab(namespaces: Namespaces, database_url: str) -> AsyncIterator[Lab]:
    async with running_lab(namespaces, database_url) as running:
        await Presence(running.db).instance_beat("worker-1", "worker", "1", [running.backend.host_id], "boot")
        # Heard of, however long a test takes.
        await running.db.fetch_all("update scaler_instances set last_seen_at = now() + interval '1 hour'")
        yield running


@pytest.fixture
def look(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Look:
    """What one check of doctor finds; nothing is too young for it."""
    monkeypatch.setattr(doctor_workflows, "YOUNG", -doctor_workflows.YOUNG)

    async def found(check: str) -> list[Finding]:
        return [finding async for finding in CHECKS[check](lab.db, lab.temporal)]

    return found
