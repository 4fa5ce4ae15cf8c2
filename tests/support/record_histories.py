"""Records the histories that the replay test holds the workflows against: `python -m tests.support.record_histories`.

Run it for a release, or with names of new ends, and commit what it writes. What a released history says stays: a change
that it does not replay under needs `workflow.patched()`, not a new recording.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchway.dev.temporal import EmbeddedTemporal
from tests.support.endings import ENDS
from tests.support.lab import running_lab
from tests.support.namespaces import Namespaces
from tests.support.postgres_fixtures import running_postgres

HISTORIES = Path(__file__).parents[1] / "histories"


async def record(names: list[str]) -> None:
    with running_postgres() as postgres, tempfile.TemporaryDirectory() as directory:
        async with EmbeddedTemporal(Path(directory), persistent=False, ui=False) as server:
            namespaces = Namespaces(server.address)
            for name in names:
                reach, _ = ENDS[name]
                async with running_lab(namespaces, postgres.database()) as lab:
                    started = await reach(lab)
                    history = await lab.run_of(started, started.run_id).fetch_history()
                save(name, started.workflow_id, history.to_json_dict())
            namespaces.stop()


def save(name: str, workflow_id: str, history: dict[str, Any]) -> None:
    """Without what tells of the machine that it was recorded on."""
    content = {"workflow_id": workflow_id, "history": _impersonal(history)}
    (HISTORIES / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    print(f"{name}: {len(history['events'])} events")


def _impersonal(value: Any) -> Any:
    if isinstance(value, list):
        return [_impersonal(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: "hatchway" if key == "identity" else _impersonal(item)
        for key, item in value.items()
        if key != "stackTrace"
    }


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:] or list(ENDS)))
