"""`hatchway logs AGENT`: what an agent's compute printed, on the host where it runs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hatchway.cli.connections import database, hatchway_client, run_async
from hatchway.cli.failures import Failure, failed
from hatchway.cli.output import JsonOption, emit
from hatchway.cli.targets import AGENT_ID, of_workflow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hatchway.backends.base import Backend
    from hatchway.config.schema import Scaler
    from hatchway.store.pool import Database
    from hatchway.store.rows import SpawnRow

StateDirOption = Annotated[
    Path | None, typer.Option(envvar="HATCHWAY_STATE_DIR", help="The worker's --state-dir, where it has one.")
]


def logs(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="An agent id, or the id of its workflow.")],
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=100_000, help="How many of the last lines.")] = 200,
    host_id: Annotated[str | None, typer.Option(envvar="HATCHWAY_HOST_ID", help="This machine's name.")] = None,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Print the last lines of an agent's output. Only on the host where it runs: its output stays there. Of an EC2
    instance it is the console, from wherever there are AWS credentials; of an event scaler's there is none here."""
    agent_id, text = run_async(_logs(agent, lines, host_id, state_dir))
    if json:
        emit({"agent_id": agent_id, "text": text}, json_wanted=True)
    elif text:
        print(text.rstrip("\n"))


async def _logs(agent: str, lines: int, host_id: str | None, state_dir: Path | None) -> tuple[str, str]:
    """The agent's id, and what it printed."""
    from hatchway.store.slots import Slots

    async with database() as db:
        agent_id = await _agent_id(agent)
        row = await Slots(db).get(agent_id)
        if row is None:
            raise await _without_slot(agent_id, db)
        if row.host_id is None:
            raise failed("not_spawned", f"agent {agent_id} has no compute yet: nothing was spawned for it")
        async with _backend(row, db, host_id, state_dir) as backend:
            if backend.host_id != row.host_id:
                raise _elsewhere(row)
            return agent_id, await backend.logs(agent_id, lines)


async def _without_slot(agent_id: str, db: Database) -> Failure:
    """Postgres alone is asked: its word is enough to tell one that has ended from one that it never heard of."""
    from hatchway.store.outcomes import Outcomes

    if await Outcomes(db).get(agent_id) is not None:
        return failed("not_found", f"agent {agent_id} has ended: its output went with its compute")
    return failed(
        "not_found",
        f"no agent {agent_id} holds a slot or is known to have ended: it may wait in the line (`hatchway show "
        f"{agent_id}`), be long gone, or be misspelled; `hatchway list` shows what there is",
    )


async def _agent_id(agent: str) -> str:
    """Temporal is asked for a workflow's id alone: an agent's output can be read while Temporal is down."""
    if AGENT_ID.match(agent):
        return agent
    async with hatchway_client() as client:
        return (await of_workflow(agent, client)).agent_id


@asynccontextmanager
async def _backend(row: SpawnRow, db: Database, host_id: str | None, state_dir: Path | None) -> AsyncIterator[Backend]:
    """The backend that the agent may be on: of this machine, or of the cloud."""
    from hatchway.backends.bare_metal import BareMetalBackend
    from hatchway.backends.container import ContainerBackend
    from hatchway.backends.ec2 import Ec2Backend
    from hatchway.config.schema import ScalerType
    from hatchway.host.identity import default_state_dir, host_id_of_machine
    from hatchway.store.installation import installation_id

    if row.backend_type == ScalerType.EVENT:
        raise failed(
            "not_ours",
            f"agent {row.agent_id} runs where the provisioner behind scaler {row.scaler} has started it: Hatchway "
            "sends events there and has none of its output. Look on that machine, or in the provisioner's own log",
        )
    backend: Backend
    installation = await installation_id(db)
    if row.backend_type == ScalerType.BARE_METAL:
        directory = state_dir or default_state_dir()
        machine = host_id or host_id_of_machine(directory / "host-id")
        if machine != row.host_id:
            raise _elsewhere(row)
        backend = BareMetalBackend(machine, directory, installation)
    elif row.backend_type == ScalerType.EC2:
        scaler = await _scaler_of(row, db)
        if scaler is None:
            raise failed("not_found", f"configuration version {row.config_version} has no scaler {row.scaler}: nobody "
                         f"can say which region agent {row.agent_id} is in")  # fmt: skip
        backend = Ec2Backend(scaler, installation)
    else:
        scaler = await _scaler_of(row, db)
        backend = await ContainerBackend.connect(scaler.host if scaler else None, installation)
    try:
        yield backend
    finally:
        await backend.close()


async def _scaler_of(row: SpawnRow, db: Database) -> Scaler | None:
    """The agent's scaler, from the configuration that it was reserved under."""
    from hatchway.config.current import CurrentConfig
    from hatchway.store.config_versions import ConfigVersions

    current = CurrentConfig(ConfigVersions(db))
    config = await current.version(row.config_version) if row.config_version else (await current.current())[1]
    return config.scaler(row.scaler)


def _elsewhere(row: SpawnRow) -> Failure:
    return failed("other_host", f"agent {row.agent_id} runs on host {row.host_id}: run `hatchway logs` there")
