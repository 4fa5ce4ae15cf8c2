"""`hatchway setup`: make a Temporal namespace ready for provisions."""

from __future__ import annotations

from typing import Any

from hatchway.cli.connections import database, hatchway_client, run_async
from hatchway.cli.failures import failed
from hatchway.cli.output import JsonOption, emit


def setup(json: JsonOption = False) -> None:
    """Register the search attributes, tie this database to the namespace, make the schedules. Safe to repeat.

    On Temporal Cloud it prints the command that registers them; the exit code is 1 until that has been run.
    """
    done = run_async(_setup())
    if json:
        emit(done, json_wanted=True)
        return
    added = ", ".join(done["added"]) or "none, they were there"
    print(f"search attributes added to namespace {done['namespace']}: {added}")
    for schedule, made in done["schedules"].items():
        print(f"schedule {schedule}: {made}")
    print(f"this database belongs to that namespace ({done['namespace_uuid']})")


async def _setup() -> dict[str, Any]:
    from hatchway.namespace import namespace_uuid, register_search_attributes
    from hatchway.schedules import make_schedules
    from hatchway.store.installation import tie_namespace

    async with hatchway_client() as client:
        added = await register_search_attributes(client.temporal)
        uuid = await namespace_uuid(client.temporal)
        namespace = client.temporal.namespace
        async with database() as db:
            tied = await tie_namespace(db, uuid)
        if tied.namespace_uuid != uuid:
            raise failed(
                "other_namespace",
                f"this database belongs to another Temporal namespace ({tied.namespace_uuid}) than {namespace} "
                f"({uuid}): a copy of a database must not act on the original's agents; give each namespace a "
                "database of its own",
            )
        schedules = await make_schedules(client.temporal)
    return {
        "namespace": namespace,
        "namespace_uuid": uuid,
        "added": added,
        "schedules": {name: made.value for name, made in schedules.items()},
    }
