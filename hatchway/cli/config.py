"""`hatchway config …`: check a file, put it in force, see what the cluster has, and take a change back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hatchway.cli.connections import database, run_async, temporal, temporal_errors
from hatchway.cli.failures import failed
from hatchway.cli.output import JsonOption, as_json, cell, counted, emit, table

if TYPE_CHECKING:
    from hatchway.config.plan import Plan
    from hatchway.config.schema import Config
    from hatchway.store.config_versions import Applied, ConfigVersion, ConfigVersions
    from hatchway.store.pool import Database

app = typer.Typer(help="The configuration.", no_args_is_help=True)

COLUMNS = ("version", "applied_at", "applied_by", "source", "note", "sha256")
NONE_YET = "the cluster has no configuration yet: `hatchway config apply FILE`, or start a worker with `--config FILE`"

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A configuration; scalers.d beside it is read too.")]
ExpectOption = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Refuse unless version N is in force (0: none yet). Unset: the one found."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")]
NoteOption = Annotated[str | None, typer.Option(help="For the history: why.")]
ByOption = Annotated[str | None, typer.Option(help="Who asks, for the record. Unset: your login name.")]


@app.callback()
def config() -> None:
    """The configuration."""


@app.command("check")
def check(file: FileArgument, json: JsonOption = False) -> None:
    """Say everything that is wrong with FILE, each with its line, or that nothing is. Exit code 2 when something is."""
    from hatchway.config.loading import load
    from hatchway.config.notes import notes
    from hatchway.config.versions import to_stored

    loaded = load(file)
    worth_a_word = notes(loaded)
    if json:
        found = {"ok": True, "sha256": to_stored(loaded).sha256, "scalers": [scaler.name for scaler in loaded.scalers]}
        emit(found | ({"notes": worth_a_word} if worth_a_word else {}), json_wanted=True)
        return
    for scaler in loaded.scalers:
        agents, sets = counted(scaler.max_agents, "agent"), counted(len(scaler.label_sets), "label set")
        print(f"{scaler.name}: {scaler.type.value}, at most {agents}, {sets}")
    for note in worth_a_word:
        print(f"note: {note}")
    print(f"{file} is fine")


@app.command("apply")
def apply(
    file: FileArgument,
    expect_version: ExpectOption = None,
    dry_run: DryRunOption = False,
    note: NoteOption = None,
    by: ByOption = None,
    json: JsonOption = False,
) -> None:
    """Make FILE the cluster's configuration: checked, as a whole, and only over the version that was looked at.

    Running agents keep what they were made with. A FILE that says what is in force already changes nothing.
    """
    from hatchway.config.loading import load

    loaded = load(file)

    async def given(versions: ConfigVersions) -> Config:
        return loaded

    _put_in_force(given, str(file), expect_version, note, by, dry_run=dry_run, json=json)


@app.command("rollback")
def rollback(
    version: Annotated[int, typer.Argument(min=1, metavar="N", help="A version of `hatchway config history`.")],
    expect_version: ExpectOption = None,
    dry_run: DryRunOption = False,
    note: NoteOption = None,
    by: ByOption = None,
    json: JsonOption = False,
) -> None:
    """Apply what version N said, as a new version."""

    async def given(versions: ConfigVersions) -> Config:
        from hatchway.config.plan import earlier

        return await earlier(versions, version)

    _put_in_force(given, f"rollback to version {version}", expect_version, note, by, dry_run=dry_run, json=json)


@app.command("show")
def show(
    version: Annotated[int | None, typer.Option(min=1, metavar="N", help="An earlier one. Unset: in force.")] = None,
    json: JsonOption = False,
) -> None:
    """Print the configuration in force, as the cluster stores it: references to secrets, never a secret."""
    found = run_async(_version(version))
    if json:
        emit({**_entry(found), "content": found.content}, json_wanted=True)
        return
    import json as jsonlib

    print(f"# version {found.version}, applied {cell(found.applied_at)} by {cell(found.applied_by)}")
    print(f"# from {cell(found.source)}" + (f": {cell(found.note)}" if found.note else ""))
    print(jsonlib.dumps(jsonlib.loads(as_json(found.content)), indent=2, ensure_ascii=False))


@app.command("history")
def history(json: JsonOption = False) -> None:
    """List every version that was applied, newest first. With --json one object a line."""
    entries = [_entry(version) for version in run_async(_history())]
    if json:
        for entry in entries:
            print(as_json(entry))
    elif entries:
        print("\n".join(table(COLUMNS, ({**entry, "sha256": entry["sha256"][:12]} for entry in entries))))
    else:
        print(NONE_YET)


def _entry(version: ConfigVersion) -> dict[str, Any]:
    return {column: getattr(version, column) for column in ("version", "parent", *COLUMNS[1:])}


async def _version(number: int | None) -> ConfigVersion:
    from hatchway.config.plan import no_such_version
    from hatchway.store.config_versions import ConfigVersions

    async with database() as db:
        versions = ConfigVersions(db)
        if number is None:
            found = await versions.current()
            if found is None:
                raise failed("no_config", NONE_YET)
            return found
        found = await versions.get(number)
        if found is None:
            raise await no_such_version(versions, number)
        return found


async def _history() -> list[ConfigVersion]:
    from hatchway.store.config_versions import ConfigVersions

    async with database() as db:
        return await ConfigVersions(db).history()


# ── putting one in force ────────────────────────────────────────────────────────────────────────────────────────


def _put_in_force(
    given: Callable[[ConfigVersions], Awaitable[Config]],
    source: str,
    expected: int | None,
    note: str | None,
    by: str | None,
    *,
    dry_run: bool,
    json: bool,
) -> None:
    async def work() -> tuple[Plan, Applied | None, str | None]:
        from hatchway.client import whoami
        from hatchway.config.plan import carry_out, plan
        from hatchway.store.config_versions import ConfigVersions

        async with database() as db:
            versions = ConfigVersions(db)
            planned = await plan(versions, await given(versions), expected)
            if dry_run:
                return planned, None, None
            applied = await carry_out(versions, planned, source=source, by=by or whoami(), note=note)
            return planned, applied, await _told(db, applied)

    planned, applied, untold = run_async(work())
    if json:
        emit(_as_object(planned, applied, untold), json_wanted=True)
    else:
        _say(planned, applied, untold)


async def _told(db: Database, applied: Applied) -> str | None:
    """Signal those who got room by it. Why that did not work, if it did not: the apply stands all the same."""
    if not applied.wake:
        return None
    from hatchway.errors import HatchwayError
    from hatchway.store.slots import Slots
    from hatchway.store.waiters import Line
    from hatchway.waking import wake_all

    try:
        with temporal_errors():
            await wake_all(await temporal(), Slots(db), Line(db), applied.wake)
    except HatchwayError as e:  # whichever server it was: the room is given, and the sweep tells those who have it
        return (
            f"those who wait in the line and have something to hear were not all told ({e}); the next sweep tells them"
        )
    return None


def _as_object(planned: Plan, applied: Applied | None, untold: str | None) -> dict[str, Any]:
    from hatchway.config.notes import notes

    worth_a_word = notes(planned.config)
    return {
        "version": planned.base if applied is None else applied.version,
        "changed": not planned.same,
        "dry_run": applied is None,
        "base": planned.base,
        **asdict(planned.difference),
        **({"notes": worth_a_word} if worth_a_word else {}),
        **({"warning": untold} if untold else {}),
    }


def _say(planned: Plan, applied: Applied | None, untold: str | None) -> None:
    from hatchway.config.notes import notes

    if planned.same:
        print(f"version {planned.base} is in force and says the same: nothing to apply")
        return
    if planned.unreadable:
        print(f"# version {planned.base}, written by a newer release, cannot be read: the changes are shown from none")
    for line in planned.difference.lines():
        print(line)
    for note in notes(planned.config):
        print(f"note: {note}")
    if applied is None:
        print(f"dry run: version {planned.base} stays in force" if planned.base else "dry run: nothing is in force")
    else:
        print(f"version {applied.version} is in force")
    if untold:
        print(untold)
