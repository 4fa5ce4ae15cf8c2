"""`hatchway setup`: make a Temporal namespace ready for provisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hatchway.cli.connections import database, hatchway_client, run_async
from hatchway.cli.failures import failed, usage
from hatchway.cli.output import JsonOption, emit

if TYPE_CHECKING:
    from hatchway.store.installation import Installation
    from hatchway.store.pool import Database

RetieOption = Annotated[
    bool,
    typer.Option("--retie", help="This database has moved to this namespace for good, and its agents with it."),
]
AsCopyOption = Annotated[
    bool,
    typer.Option(
        "--as-copy", help="This database is a copy whose original goes on: forget its agents, take a new installation."
    ),
]


def setup(retie: RetieOption = False, as_copy: AsCopyOption = False, json: JsonOption = False) -> None:
    """Register the search attributes, tie this database to the namespace, make the schedules. Safe to repeat.

    On Temporal Cloud it prints the command that registers them; the exit code is 1 until that has been run.
    """
    if retie and as_copy:
        raise usage("--retie is for a database that has moved, --as-copy for a copy: give one of them")
    done = run_async(_setup(retie=retie, as_copy=as_copy))
    if json:
        emit(done, json_wanted=True)
        return
    added = ", ".join(done["added"]) or "none, they were there"
    print(f"search attributes added to namespace {done['namespace']}: {added}")
    for schedule, made in done["schedules"].items():
        print(f"schedule {schedule}: {made}")
    print(
        f"this database belongs to that namespace ({done['namespace_uuid']}) as installation {done['installation_id']}"
    )


async def _setup(*, retie: bool, as_copy: bool) -> dict[str, Any]:
    from hatchway.namespace import namespace_uuid, register_search_attributes
    from hatchway.schedules import make_schedules
    from hatchway.tie import other_namespace

    async with hatchway_client() as client:
        added = await register_search_attributes(client.temporal)
        uuid = await namespace_uuid(client.temporal)
        namespace = client.temporal.namespace
        async with database() as db:
            tied = await _tie(db, uuid, retie=retie, as_copy=as_copy)
        if tied.namespace_uuid != uuid:
            raise failed("other_namespace", other_namespace(tied, namespace, uuid))
        schedules = await make_schedules(client.temporal)
    return {
        "namespace": namespace,
        "namespace_uuid": uuid,
        "installation_id": str(tied.installation_id),
        "added": added,
        "schedules": {name: made.value for name, made in schedules.items()},
    }


async def _tie(db: Database, uuid: str, *, retie: bool, as_copy: bool) -> Installation:
    from hatchway.store.installation import become_another, living_worker, retie_namespace, tie_namespace

    tied = await tie_namespace(db, uuid)
    if tied.namespace_uuid == uuid or not (retie or as_copy):
        return tied
    if worker := await living_worker(db):
        raise failed(
            "in_use",
            f"a worker uses this database as that of its namespace ({worker}): is DATABASE_URL right? If so, stop its "
            "workers, wait a minute, and repeat this",
        )
    return await (become_another if as_copy else retie_namespace)(db, uuid)
