"""`hatchway drain SCALER`: no new agents there, until the drain is ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hatchway.cli.agents import ByOption
from hatchway.cli.connections import database, run_async, temporal, temporal_errors
from hatchway.cli.failures import failed
from hatchway.cli.output import JsonOption, emit

if TYPE_CHECKING:
    from hatchway.store.waiters import Drained


def drain(
    scaler: Annotated[str, typer.Argument(metavar="SCALER", help="Its name in the configuration.")],
    undo: Annotated[bool, typer.Option("--undo", help="End the drain: it takes new work again.")] = False,
    by: ByOption = None,
    json: JsonOption = False,
) -> None:
    """Let a scaler take no new work. Agents that run there finish; jobs that wait for it go elsewhere, or wait on.

    A drain outlives restarts and applies of a configuration, until --undo.
    """
    done = run_async(_drain(scaler, by, accepting=undo))
    if json:
        emit({"scaler": scaler, "draining": not undo, "changed": done.changed}, json_wanted=True)
    elif not done.changed:
        print(f"{scaler}: {'was not draining' if undo else 'is draining already'}; nothing was changed")
    elif undo:
        print(f"{scaler}: takes new work again")
    else:
        print(f"{scaler}: takes no new work; agents that run there finish (`hatchway status` shows them)")


async def _drain(scaler: str, by: str | None, *, accepting: bool) -> Drained:
    from hatchway.client import whoami
    from hatchway.errors import HatchwayError
    from hatchway.store.slots import Slots
    from hatchway.store.waiters import Line
    from hatchway.waking import wake

    async with database() as db:
        done = await Line(db).accept(scaler, accepting, by or whoami())
        if done is None:
            known = ", ".join(await Line(db).scalers()) or "none"
            raise failed("unknown_scaler", f"no scaler of the configuration is called {scaler!r}; it has: {known}")
        if done.wake:
            try:
                with temporal_errors():
                    await wake(await temporal(), Slots(db), done.wake)
            except HatchwayError as e:  # the drain stands all the same
                print(
                    f"those who wait for it were not all told ({e}); the next sweep tells those who got a slot",
                    file=sys.stderr,
                )
        return done
