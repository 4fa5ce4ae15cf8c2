"""`hatchway status`: every scaler with what its caps have left, then the line with what each waits for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hatchway.cli.connections import database, run_async
from hatchway.cli.output import JsonOption, as_json, cell, table
from hatchway.errors import StoreUnreachable

if TYPE_CHECKING:
    from hatchway.store.pool import Database
    from hatchway.store.standing import ScalerStanding, Use

WATCH_EVERY_S = 2.0
CLEAR = "\x1b[2J\x1b[H"

SCALER_COLUMNS = ("scaler", "agents", "cpus", "memory", "states", "waiting", "oldest", "note")
LINE_COLUMNS = ("place", "job_id", "agent_id", "priority", "waits", "scalers", "cause")


def status(
    watch: Annotated[bool, typer.Option("--watch", help="Again every two seconds, until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How much of the line to show.")] = 20,
    json: JsonOption = False,
) -> None:
    """Show every scaler with its agents, its caps and what holds it back, and then the waiting line.

    A scaler's caps are its own; those of its pool and of everything together stand below. --json --watch: one object a
    line.
    """
    run_async(_status(limit, watch=watch, json=json))


async def _status(limit: int, *, watch: bool, json: bool) -> None:
    async with database() as db:
        _show(await standing(db, limit), json=json, clear=watch)
        while watch:
            await asyncio.sleep(WATCH_EVERY_S)
            try:
                _show(await standing(db, limit), json=json, clear=True)
            except StoreUnreachable as e:  # whoever watches wants to see it come back
                print(f"{e}; asked again every {WATCH_EVERY_S:g} s, until Ctrl-C", file=sys.stderr, flush=True)


def _show(found: dict[str, Any], *, json: bool, clear: bool) -> None:
    if json:
        print(as_json(found), flush=True)
    else:
        print((CLEAR if clear and sys.stdout.isatty() else "") + "\n".join(lines(found)), flush=True)


async def standing(db: Database, limit: int) -> dict[str, Any]:
    """What the command prints, as one object. Sizes in bytes, times in seconds."""
    from hatchway.store.standing import Standings
    from hatchway.store.waiters import Line

    line = Line(db)
    now = await Standings(db).take()
    waiters = []
    for waiter in await line.list(limit):
        place = await line.place(waiter.agent_id)
        if place is None:  # it has got its slot, or left, since the line was read
            continue
        waiters.append(
            {
                "place": place.position,
                "job_id": waiter.job_id,
                "agent_id": waiter.agent_id,
                "workflow_id": waiter.workflow_id,
                "priority": waiter.priority,
                "waits_s": round(waiter.age.total_seconds(), 1),
                "scalers": waiter.scalers,
                "cause": "; ".join(str(bound) for bound in place.bounds),
            }
        )
    return {
        "scalers": [_scaler(scaler) for scaler in now.scalers],
        "shared": [{"scope": use.scope, **_use(use)} for use in now.shared],
        "waiting": now.waiting,
        "line": waiters,
    }


def _use(use: Use) -> dict[str, Any]:
    return {
        "agents": {"used": use.agents, "cap": use.max_agents},
        "cpus": {"used": use.mcpu / 1000, "cap": None if use.max_mcpu is None else use.max_mcpu / 1000},
        "memory_bytes": {"used": use.mem_bytes, "cap": use.max_mem_bytes},
    }


def _scaler(scaler: ScalerStanding) -> dict[str, Any]:
    return {
        "scaler": scaler.name,
        "pool": scaler.pool and scaler.pool.removeprefix("pool:"),
        **_use(scaler.use),
        "states": scaler.states,
        "waiting": scaler.waiting,
        "oldest_s": None if scaler.oldest is None else round(scaler.oldest.total_seconds(), 1),
        "draining": scaler.draining,
        "drained_at": scaler.drained_at if scaler.draining else None,
        "drained_by": scaler.drained_by if scaler.draining else None,
        "retired": scaler.retired,
        "backoff_until": scaler.backoff_until,
        "failures": scaler.failures,
        "last_failure": f"{scaler.last_code}: {scaler.last_message}" if scaler.last_code else None,
    }


# ── for people ──────────────────────────────────────────────────────────────────────────────────────────────────────


def lines(found: dict[str, Any]) -> list[str]:
    """The object of `standing` as text."""
    rows = [_row(scaler["scaler"], scaler, _note(scaler)) for scaler in found["scalers"]]
    rows += [_row(shared["scope"], shared, "") for shared in found["shared"]]
    text = list(table(SCALER_COLUMNS, rows))
    if not found["line"]:
        return [*text, "", "nobody waits"]
    shown = len(found["line"])
    more = "" if shown == found["waiting"] else f", the first {shown} of them"
    waiters = [{**waiter, "waits": _ago(waiter["waits_s"])} for waiter in found["line"]]
    return [*text, "", f"{found['waiting']} in the line{more}:", *table(LINE_COLUMNS, waiters)]


def _row(name: str, it: dict[str, Any], note: str) -> dict[str, Any]:
    return {
        "scaler": name,
        "agents": _of(it["agents"], str),
        "cpus": _of(it["cpus"], lambda number: f"{number:g}"),
        "memory": _of(it["memory_bytes"], _size),
        "states": ", ".join(f"{number} {state}" for state, number in sorted(it.get("states", {}).items())),
        "waiting": it.get("waiting"),
        "oldest": None if it.get("oldest_s") is None else _ago(it["oldest_s"]),
        "note": note,
    }


def _note(scaler: dict[str, Any]) -> str:
    notes = []
    if scaler["retired"]:
        notes.append("retired: not in the configuration")
    if scaler["draining"]:
        notes.append(f"draining since {cell(scaler['drained_at'])}, by {scaler['drained_by'] or 'nobody known'}")
    if scaler["backoff_until"]:
        notes.append(f"backs off until {_clock(scaler['backoff_until'])}, {scaler['failures']} failures in a row")
    if scaler["last_failure"]:
        notes.append(f"last failure {scaler['last_failure']}")
    if scaler["pool"]:
        notes.append(f"in pool:{scaler['pool']}")
    return "; ".join(notes)


def _of(use: dict[str, Any], shown: Callable[[Any], str]) -> str:
    return shown(use["used"]) + ("" if use["cap"] is None else f" of {shown(use['cap'])}")


def _size(number: int) -> str:
    return f"{number / 1024**3:.3g} Gi" if number >= 1024**3 else f"{number / 1024**2:.4g} Mi"


def _ago(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S} UTC"
