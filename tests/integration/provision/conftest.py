from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces
from tests.support.stack import Stack, label_set, laptop, running_stack


@pytest.fixture(scope="module")
async def stack(namespaces: Namespaces, module_database_url: str) -> AsyncIterator[Stack]:
    """Worker and gateway, with one scaler: `linux` agents run a short job, `serve` agents wait to be drained."""
    config = laptop(
        maxAgents=8,
        labelSets=[
            label_set("linux", "/bin/sh", "-c", "echo working; sleep 0.2"),
            label_set("fails", "/bin/sh", "-c", "exit 3"),
            label_set("serve"),
        ],
    )
    async with running_stack(namespaces, module_database_url, config) as running:
        yield running


@pytest.fixture
async def lab(namespaces: Namespaces, database_url: str) -> AsyncIterator[Lab]:
    """The workflows with a scripted backend, for the edges."""
    async with running_lab(namespaces, database_url) as running:
        yield running


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No delay of a busy machine leads a provision off its straight path: for tests that count what is on that.

    A database step that takes long stays inside its workflow task, and a wait for the agent stays one wait.
    """
    monkeypatch.setattr("workflows.steps.LOCAL_LIMIT", timedelta(seconds=60))
    monkeypatch.setattr("workflows.path.PROMPT", timedelta(hours=1))
