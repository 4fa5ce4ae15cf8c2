"""`hatchway auth explain IMAGE`: whose credentials an image is pulled with, and why."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hatchway.cli.connections import database, run_async
from hatchway.cli.failures import ExitCode, usage
from hatchway.cli.output import JsonOption, as_json, table

if TYPE_CHECKING:
    from hatchway.config.schema import Config, Scaler
    from hatchway.model import ContainerSpec

app = typer.Typer(help="Registry credentials.", no_args_is_help=True)


@app.callback()
def auth() -> None:
    """Registry credentials."""


@app.command("explain")
def explain(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="An image, such as ghcr.io/acme/ci:2.")],
    job: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A provision request in JSON, or its `container` alone; - is stdin."),
    ] = None,
    scaler: Annotated[str | None, typer.Option(metavar="NAME", help="Only this one. Unset: all of containers.")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead of the cluster's configuration (DATABASE_URL).")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say which source of credentials serves a pull of IMAGE, and what each of them says. Shows no secret.

    Asks like a worker on this host, as this user: its files, environment, docker config and AWS identity. Exit code 1
    where a scaler's pull would fail before the registry is asked.
    """
    answers = run_async(_explain(image, _container(job), scaler, config))
    if json:
        print(as_json({"image": image, "scalers": answers}), flush=True)
    else:
        for answer in answers:
            print(f"scaler {answer['scaler']}: {_sentence(answer)}")
            for line in table(("source", "verdict", "why"), answer["sources"]):
                print(f"  {line}")
    if any(answer["serves"] is None for answer in answers):
        raise typer.Exit(ExitCode.FAILED)


def _sentence(answer: dict[str, Any]) -> str:
    if answer["serves"] is None:
        return "the pull fails before the registry is asked"
    if answer["serves"] == "anonymous":
        return "pulls without credentials"
    return f"pulls with those of the source {answer['serves']}"


async def _explain(
    image: str, container: ContainerSpec | None, name: str | None, file: Path | None
) -> list[dict[str, Any]]:
    from hatchway.config.schema import ScalerType
    from hatchway.registry.pull import Logins, Standing
    from hatchway.registry.reference import parse_reference
    from hatchway.secrets.resolver import SecretResolver

    normalized = parse_reference(image).normalized
    async with _configuration(file) as config:
        chosen: list[Scaler] = [
            scaler for scaler in config.scalers if scaler.type is ScalerType.CONTAINER and name in (None, scaler.name)
        ]
        if not chosen:
            raise usage(
                f"the configuration has no container scaler {name}"
                if name
                else "the configuration has no container scaler, and nothing else pulls images"
            )
        logins, resolver = Logins(os.environ), SecretResolver(config.secrets, os.environ)
        answers = []
        for scaler in chosen:
            verdicts = await logins.explain(image, container, scaler, resolver)
            serves = [verdict.source.value for verdict in verdicts if verdict.standing is Standing.SERVES]
            answers.append(
                {
                    "scaler": scaler.name,
                    "image": normalized,
                    "serves": serves[0] if serves else None,
                    "sources": [
                        {"source": v.source.value, "verdict": v.standing.value, "why": v.why} for v in verdicts
                    ],
                }
            )
    return answers


@asynccontextmanager
async def _configuration(file: Path | None) -> AsyncIterator[Config]:
    if file is not None:
        from hatchway.config.loading import load

        yield load(file)
        return
    from hatchway.config.current import CurrentConfig
    from hatchway.store.config_versions import ConfigVersions

    async with database() as db:
        _, config = await CurrentConfig(ConfigVersions(db)).current()
        yield config


def _container(file: Path | None) -> ContainerSpec | None:
    """The container of a job's file. Raises Failure, which never quotes the file."""
    if file is None:
        return None
    from pydantic import ValidationError

    from hatchway.foreign_json import parse_foreign
    from hatchway.model import ContainerSpec, ProvisionRequest

    try:
        given = parse_foreign(sys.stdin.read() if str(file) == "-" else file.read_text())
    except OSError as e:
        raise usage(f"cannot read {file}: {e.strerror}") from None
    except ValueError:  # its text quotes the file
        raise usage(f"{file} is not JSON") from None
    if not isinstance(given, dict):
        raise usage(f"{file} is not a JSON object: it is a provision request, or its `container`")
    try:
        if "labels" in given or "container" in given:
            return ProvisionRequest.model_validate({"labels": [], **given}).container
        return ContainerSpec.model_validate(given)
    except ValidationError as e:
        wrong = e.errors(include_url=False, include_context=False, include_input=False)
        raise usage(
            f"{file}: "
            + "; ".join(
                f"{'.'.join(map(str, w['loc'])) or 'container'}: {w['msg'].removeprefix('Value error, ')}"
                for w in wrong
            )
        ) from None
