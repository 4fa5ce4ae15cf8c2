"""`hatchway demo`: one provision from end to end on a stack of its own, told as it happens and checked afterwards."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hatchway.backends.bare_metal import BareMetalBackend
from hatchway.client import HatchwayClient
from hatchway.dev.showing import Showing, Shown
from hatchway.dev.stack import Stack, connected
from hatchway.host.identity import host_id_of_machine
from hatchway.model import ContainerAuth, ContainerSpec, ProvisionRequest
from hatchway.store.installation import installation_id
from hatchway.store.pool import Database

JOB = ["/bin/sh", "-c", "echo hello from the job; sleep 1; echo all tests passed; sleep 1"]
TOKEN = "registry-token"  # noqa: S105 - the name of a file
USERNAME = "demo"
IMAGE = "registry.example.com/ci/build:1"
"""What the job of the bare-metal demo is made of. Its credentials are resolved for real; a process pulls nothing."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """The last line of a demo."""

    agent_id: str
    workflow_id: str
    run_id: str
    ui_url: str
    stages_s: dict[str, float]
    ok: bool

    @classmethod
    def of(cls, shown: Shown, *, ok: bool) -> Result:
        started = shown.started
        return cls(started.agent_id, started.workflow_id, started.run_id, shown.ui_url, shown.stages_s, ok)

    def line(self) -> str:
        return json.dumps(asdict(self))


@asynccontextmanager
async def demo(directory: Path, say: Say, *, database_url: str | None = None) -> AsyncIterator[Result]:
    """Run the demo; its servers stay up inside the context. Raises HatchwayError when the stack does not come up."""
    stack = Stack(directory, directory / "config.yaml", database_url=database_url, say=say)
    stack.prepare()
    write_private(stack.secrets_dir / TOKEN, secrets.token_urlsafe(24))
    write_private(stack.config, json.dumps(_config(stack), indent=2))
    async with connected(stack) as (client, db):
        shown = await _show(stack, client, db, say)
        yield Result.of(shown, ok=await shown.check(client, db, say))


async def _show(stack: Stack, client: HatchwayClient, db: Database, say: Say) -> Shown:
    machine = host_id_of_machine(stack.state_dir / "host-id")
    backend = BareMetalBackend(machine, stack.state_dir, await installation_id(db))
    try:
        return await Showing(stack, client, db, backend, say).run(request(IMAGE, USERNAME))
    finally:
        await backend.close()


def request(image: str, username: str) -> ProvisionRequest:
    """A job of its own each time, so that no earlier run has served it already."""
    number = secrets.token_hex(4)
    return ProvisionRequest(
        labels=["linux"],
        job_id=f"demo-{number}",
        run_id=f"run-{number}",
        container=ContainerSpec(image=image, auth=ContainerAuth(username=username, tokenSecret=f"demo:{TOKEN}")),
    )


def secret_contexts(stack: Stack, registry: str) -> dict[str, Any]:
    """One context `demo`, of files, whose secrets may be sent to that registry only."""
    return {"contexts": {"demo": {"type": "file", "path": str(stack.secrets_dir), "registries": [registry]}}}


def _config(stack: Stack) -> dict[str, Any]:
    label_set = {"labels": ["linux"], "user": "nobody", "env": {"HATCHWAY_AGENT_COMMAND": json.dumps(JOB)}}
    return {
        "version": 1,
        "secrets": secret_contexts(stack, IMAGE.partition("/")[0]),
        "scalers": [{"name": "demo", "type": "bare-metal", "maxAgents": 1, "labelSets": [label_set]}],
    }


def write_private(path: Path, text: str) -> None:
    """Replace a file, readable by its owner only from the first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
