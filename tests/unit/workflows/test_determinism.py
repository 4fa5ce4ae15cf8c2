"""Workflow code has no clock, no chance and no I/O of its own. The SDK's sandbox refuses these at run time, but only in
the module of the workflow itself: what it imports is passed through. So they are refused here, by reading."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PURE = ["transitions", "model", "labels", "errors", "task_queues", "search_attributes", "quantities"]
MODULES = [*sorted((ROOT / "workflows").glob("*.py")), *(ROOT / "hatchway" / f"{name}.py" for name in PURE)]

FORBIDDEN_MODULES = {
    "time", "random", "secrets", "os", "socket", "subprocess", "threading", "pathlib", "psycopg", "docker", "boto3",
    "httpx", "structlog",
}  # fmt: skip
FORBIDDEN_CALLS = {
    "open", "print", "input", "hash", "id",  # hash and id differ from process to process
    "datetime.now", "datetime.utcnow", "datetime.today", "date.today", "datetime.datetime.now",
    "uuid.uuid1", "uuid.uuid4", "uuid4",  # workflow.uuid4 is the same on replay
    "asyncio.wait", "asyncio.as_completed", "asyncio.to_thread", "asyncio.run",  # workflow.wait keeps the order
}  # fmt: skip


def offences(source: str) -> list[str]:
    """Every use of what differs between a run and its replay, with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.ImportFrom(module=str(module)):
                modules = [module]
            case _:
                modules = []
        found += [f"{node.lineno}: imports {m}" for m in modules if m.split(".")[0] in FORBIDDEN_MODULES]  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and (called := ast.unparse(node.func)) in FORBIDDEN_CALLS:
            found.append(f"{node.lineno}: calls {called}")
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_in_it_differs_on_replay(module: Path) -> None:
    assert offences(module.read_text()) == []


@pytest.mark.parametrize(
    "line", ["import time", "from os import environ", "x = datetime.now()", "asyncio.wait(tasks)", "open('f')"]
)
def test_an_offence_is_found(line: str) -> None:
    assert len(offences(f"\n{line}\n")) == 1
