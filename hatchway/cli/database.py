"""`hatchway db migrate`: the only thing that changes the schema."""

from __future__ import annotations

import typer

from hatchway.cli.connections import database_errors, database_url
from hatchway.cli.output import JsonOption, emit

app = typer.Typer(help="The database.", no_args_is_help=True)


@app.callback()
def database() -> None:
    """The database."""


@app.command("migrate")
def migrate(json: JsonOption = False) -> None:
    """Bring the database at DATABASE_URL to this release's schema. Safe to repeat, and from several places at once."""
    from hatchway.store.migrate import current_revision
    from hatchway.store.migrate import migrate as bring_to_head

    url = database_url()
    with database_errors():
        before = current_revision(url)
        bring_to_head(url)
        after = current_revision(url)
    if json:
        emit({"before": before, "after": after}, json_wanted=True)
    elif before == after:
        print(f"the database is at revision {after} already")
    else:
        print(f"the database is at revision {after} now (was {before or 'empty'})")
