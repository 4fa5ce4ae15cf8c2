"""What a command prints: one JSON object for programs, aligned text for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from hatchway.printable import printable

JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON object on stdout; errors as {error, message} on stderr.")
]


def as_json(value: Mapping[str, Any]) -> str:
    """One line of JSON. Durations in seconds, times in ISO 8601."""
    return json.dumps(value, default=_plain, ensure_ascii=False)


def emit(value: Mapping[str, Any], *, json_wanted: bool) -> None:
    """The object as JSON, or a line for each of its fields that has a value."""
    if json_wanted:
        print(as_json(value), flush=True)
        return
    shown = {key: text for key, field in value.items() if (text := cell(field)) != "-"}
    width = max(map(len, shown), default=0)
    for key, text in shown.items():
        print(f"{key:<{width}}  {text}")


def table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Lines of a table whose columns are as wide as their widest cell: nothing is cut, ids are there to be copied."""
    cells = [[cell(row.get(column)) for column in columns] for row in rows]
    widths = [max([len(column), *(len(line[i]) for line in cells)]) for i, column in enumerate(columns)]
    for line in [[column.upper() for column in columns], *cells]:
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()


def counted(number: int, what: str) -> str:
    """`1 agent`, `2 agents`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def cell(value: Any) -> str:
    """One value for people; nothing at all is a dash."""
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {cell(field)}" for key, field in value.items() if cell(field) != "-")
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value))
    if isinstance(value, datetime):
        # In UTC whatever the session's time zone: a server's or PGTZ's would be read as this machine's.
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if isinstance(value, Enum):
        return str(value.value)
    # Foreign text (an error, an image name) must not move the cursor of whoever reads it.
    return printable(str(value))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form here")
