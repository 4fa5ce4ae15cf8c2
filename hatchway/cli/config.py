"""`hatchway config …`: check a file, and see what the cluster has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hatchway.cli.connections import database, run_async
from hatchway.cli.failures import failed
from hatchway.cli.output import JsonOption, as_json, emit

app = typer.Typer(help="The configuration.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """The configuration."""


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A configuration; scalers.d beside it is read too.")],
    json: JsonOption = False,
) -> None:
    """Say everything that is wrong with FILE, each with its line, or that nothing is. Exit code 2 when something is."""
    from hatchway.config.loading import load
    from hatchway.config.versions import to_stored

    loaded = load(file)
    if json:
        emit(
            {"ok": True, "sha256": to_stored(loaded).sha256, "scalers": [scaler.name for scaler in loaded.scalers]},
            json_wanted=True,
        )
        return
    for scaler in loaded.scalers:
        sets = len(scaler.label_sets)
        print(f"{scaler.name}: {scaler.type.value}, at most {scaler.max_agents} agents, {sets} label sets")
    print(f"{file} is fine")


@app.command("show")
def show(json: JsonOption = False) -> None:
    """Print the configuration in force, as the cluster stores it: references to secrets, never a secret."""
    version = run_async(_current())
    if json:
        emit(version, json_wanted=True)
        return
    import json as jsonlib

    print(f"# version {version['version']}, from {version['source']}")
    print(jsonlib.dumps(jsonlib.loads(as_json(version["content"])), indent=2, ensure_ascii=False))


async def _current() -> dict[str, Any]:
    from hatchway.store.config_versions import ConfigVersions

    async with database() as db:
        current = await ConfigVersions(db).current()
    if current is None:
        raise failed("no_config", "the cluster has no configuration yet: start one worker with `--config FILE`")
    return {"version": current.version, "source": current.source, "content": current.content}
