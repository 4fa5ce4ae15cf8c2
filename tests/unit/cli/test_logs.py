"""`hatchway logs` of agents whose output is nowhere that Hatchway reaches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from hatchway.cli import logs
from hatchway.cli.failures import Failure
from hatchway.store.pool import Database
from hatchway.store.rows import SpawnRow


async def test_an_agent_of_an_event_scaler_is_looked_for_on_no_host_and_no_engine() -> None:
    row = SimpleNamespace(agent_id="scaler-a", scaler="customers", backend_type="event", host_id="scaler.customers")
    nothing = SimpleNamespace()  # neither a database nor an engine is asked

    with pytest.raises(Failure, match="scaler customers has started it") as failed:
        async with logs._backend(cast("SpawnRow", row), cast("Database", nothing), None, None):
            pass

    assert "provisioner" in str(failed.value)
    assert "run `hatchway logs` there" not in str(failed.value)
