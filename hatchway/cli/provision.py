"""`hatchway provision`: offer one job, and wait for its agent."""

from __future__ import annotations

import asyncio
import contextlib
import json as jsonlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hatchway.cli.connections import hatchway_client, run_async
from hatchway.cli.failures import ExitCode, Failure, failed, usage
from hatchway.cli.output import JsonOption, emit
from hatchway.links import workflow_url

if TYPE_CHECKING:
    from hatchway.client import HatchwayClient, ProvisionFailed, Started
    from hatchway.model import ProvisionRequest

MAX_REQUEST_BYTES = 1024 * 1024
"""Temporal refuses an input of 2 MB; half of that leaves room for its encoding."""
REMINDER_S = 10.0
STATUS_S = 3.0
"""How long a status may take. It is an aside: without a worker nobody answers it."""


class Wait(StrEnum):
    NONE = "none"
    ADOPTED = "adopted"
    CLOSED = "closed"


def provision(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A ProvisionRequest as JSON; `-` reads it from stdin.")],
    wait: Annotated[
        Wait, typer.Option(help="Until when: not at all, an agent is adopted, or all is over.")
    ] = Wait.ADOPTED,
    workflow_id: Annotated[
        str | None, typer.Option(help="Unset: provision/job/<job_id>, so that one job is one provision.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Provision one agent. A job that has a provision already joins it.

    Exit code 0 also when the job itself failed: its agent was provisioned, and `result` says how it went.
    """
    request = read_request(file)
    emit(run_async(_provision(request, wait, workflow_id, quiet=json)), json_wanted=json)


def read_request(file: str) -> ProvisionRequest:
    """The request in `file`, or on stdin. Raises Failure, which never quotes the input: it may hold a secret."""
    from pydantic import ValidationError

    from hatchway.model import ProvisionRequest

    where = "stdin" if file == "-" else file
    try:
        data = jsonlib.loads(_read(file, where))
    except UnicodeDecodeError:
        raise usage(f"{where} is not UTF-8 text") from None
    except jsonlib.JSONDecodeError as e:
        raise usage(f"{where} is not JSON: {e.msg} at line {e.lineno}, column {e.colno}") from None
    except RecursionError:
        raise usage(f"{where} is not a request: it is nested too deeply") from None
    if not isinstance(data, dict):
        raise usage(f'{where} holds no JSON object; a request looks like {{"labels": ["linux"], "job_id": "build-7"}}')
    try:
        return ProvisionRequest.model_validate(data)
    except ValidationError as e:
        raise Failure(ExitCode.USAGE, "invalid_request", f"{where} is not a request: {_sentences(e)}") from None


def _read(file: str, where: str) -> str:
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
            content = stream.read(MAX_REQUEST_BYTES + 1)
    except OSError as e:
        raise usage(f"{where} cannot be read: {e.strerror}") from None
    if len(content) > MAX_REQUEST_BYTES:
        raise usage(f"{where} is larger than 1 MiB, which no request is")
    return content.decode()


def _sentences(error: Any) -> str:
    """One clause for each wrong field. pydantic's message for our own checks already is a sentence."""
    return "; ".join(
        f"{'.'.join(map(str, e['loc'])) or 'request'}: {e['msg'].removeprefix('Value error, ')}"
        for e in error.errors(include_url=False, include_context=False, include_input=False)
    )


async def _provision(request: ProvisionRequest, wait: Wait, workflow_id: str | None, *, quiet: bool) -> dict[str, Any]:
    from hatchway.client import ProvisionFailed
    from hatchway.errors import ErrorType

    async with hatchway_client() as client:
        started = await client.provision(request, workflow_id=workflow_id)
        said: dict[str, Any] = {
            "agent_id": started.agent_id,
            "workflow_id": started.workflow_id,
            "state": None,
            "scaler": None,
            "ui_url": workflow_url(client.temporal, started.workflow_id, started.run_id),
        }
        try:
            if wait is Wait.NONE:
                return said | await _standing(client, started)
            async with _reminders(client, started, quiet=quiet):
                if wait is Wait.CLOSED:
                    return said | await _end(client, started)
                spec = await client.wait_adopted(started)
            return said | {"state": "active", "scaler": spec.scaler}
        except ProvisionFailed as e:
            if e.error_type == ErrorType.JOB_SERVED:  # offered again after it was served: here is what came of it
                return said | await _end(client, started)
            raise _explained(e, started) from None


async def _end(client: HatchwayClient, started: Started) -> dict[str, Any]:
    outcome = await client.outcome(started)
    stages = {stage: seconds for stage, seconds in outcome.stages.model_dump(mode="json").items() if seconds}
    return {
        "state": "closed",
        "scaler": outcome.scaler,
        "result": outcome.result.value,
        "end_reason": outcome.end_reason.value,
        "teardown": outcome.teardown.value,
        "stages_s": stages,
    }


async def _standing(client: HatchwayClient, started: Started) -> dict[str, Any]:
    """Where it stands, if a worker says so at once."""
    from temporalio.service import RPCError

    try:
        async with asyncio.timeout(STATUS_S):
            status = await client.status(started.workflow_id)
    except (TimeoutError, RPCError):
        return {}
    return {"state": status.state.value, "scaler": status.scaler}


@asynccontextmanager
async def _reminders(client: HatchwayClient, started: Started, *, quiet: bool) -> AsyncIterator[None]:
    """Tell stderr every few seconds what the provision waits for, so that nobody stares at an empty line."""

    async def remind() -> None:
        from temporalio.service import RPCError

        while True:
            await asyncio.sleep(REMINDER_S)
            try:
                async with asyncio.timeout(STATUS_S):
                    status = await client.status(started.workflow_id)
                words = f"{status.state.value}: waits for {status.waiting_for}"
            except (TimeoutError, RPCError):
                words = "no worker answers: does one run against this Temporal namespace?"
            print(f"{started.agent_id} {words}", file=sys.stderr, flush=True)

    reminding = None if quiet else asyncio.create_task(remind())
    try:
        yield
    finally:
        if reminding is not None:
            reminding.cancel()


def _explained(error: ProvisionFailed, started: Started) -> Failure:
    """How a provision ended, as an exit code: declined is 3, a request that it refused 2, everything else 1."""
    from hatchway.errors import ErrorType

    message = f"{error} (workflow {started.workflow_id})"
    if error.declined:
        return Failure(ExitCode.DECLINED, error.detail or "declined", message)
    if error.error_type == ErrorType.INVALID_REQUEST:
        return Failure(ExitCode.USAGE, "invalid_request", message)
    return failed(error.error_type, message)
