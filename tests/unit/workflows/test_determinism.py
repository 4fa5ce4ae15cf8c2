"""Workflow code has no clock, no chance and no I/O of its own, and shares nothing between runs that a run could change.

The SDK's sandbox loads none of our workflow modules anew, and what they import is passed through. So all that is
refused here, by reading each module that a run executes (`tests/support/replaying.py` says how names are followed).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.replaying import Module, exports_of

ROOT = Path(__file__).parents[3]
PURE = ["transitions", "model", "job", "passes", "payloads", "labels", "errors", "task_queues", "search_attributes",
        "quantities", "registry/reference"]  # fmt: skip
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


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


EXPORTS = exports_of({_dotted(path): path.read_text() for path in MODULES})


@pytest.mark.parametrize("module", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_in_it_differs_on_replay(module: Path) -> None:
    assert offences(module.read_text()) == []
    assert Module(module.read_text(), EXPORTS).offences() == []


@pytest.mark.parametrize(
    "line", ["import time", "from os import environ", "x = datetime.now()", "asyncio.wait(tasks)", "open('f')"]
)
def test_an_offence_is_found(line: str) -> None:
    assert len(offences(f"\n{line}\n")) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import datetime as moment\nx = moment.now()",
        "import datetime as dt\nx = dt.datetime.now(dt.UTC)",
        "import datetime\nclock = datetime.datetime\ndef f(): return clock.now()",
        "from datetime import datetime\nnow = datetime.now\ndef f(): return now()",
        "from datetime import datetime\ndef f(clock=datetime): return clock.utcnow()",
        "from datetime import datetime\ndef f(*, clock=datetime.now): return clock()",
        "from datetime import date as day\nx = day.today()",
        "from datetime import datetime\nfor d in (datetime,): d.now()",
        "from datetime import datetime\na, b = datetime, 1\nx = a.today()",
        "from datetime import datetime\nclass C:\n    clock = datetime\n    def f(self): return self.clock.now()",
        "from datetime import datetime\nclass C:\n    def f(self): self.d = datetime; return self.d.now()",
        "from datetime import datetime\nx = getattr(datetime, 'now')()",
        "from datetime import datetime\ndef f(name): return getattr(datetime, name)()",
        "from datetime import datetime\nx = sorted([1], key=datetime.fromtimestamp)",
        "from datetime import datetime\ndef f(): return {'d': datetime}['d'].now()",
        "from datetime import datetime\ndef f(g): return g(datetime)",
        "from datetime import datetime\ndef f(): return (d := datetime).now()",
        "def f(at): return at.astimezone()",
        "from uuid import uuid4 as fresh\ndef f(): return fresh()",
        "import uuid as ids\ndef f(): return ids.uuid1()",
        "from uuid import *",
        "import random as dice",
        "from random import choice as pick",
        "import time as clock",
        "from time import monotonic as now",
        "def f():\n    from time import time as now\n    return now()",
        "from os import urandom",
        "import sys",
        "import importlib",
        "import json",
        "from temporalio.client import Client",
        "x = __import__('time')",
        "def f(): return eval('1')",
        "read = open",
        "def f(xs): return sorted(xs, key=id)",
        "import asyncio as aio\nasync def f(ts): await aio.wait(ts)",
        "from asyncio import as_completed as each\ndef f(ts): return each(ts)",
        "from functools import cache\n@cache\ndef f(): return 1",
        "import functools as ft\n@ft.lru_cache(maxsize=1)\ndef f(): return 1",
        "from functools import lru_cache as kept\n@kept\ndef f(): return 1",
        "from workflows.clocks import moment\nx = moment.now()",
        "import workflows.clocks as clocks\nx = clocks.moment.now()",
    ],
)
def test_what_differs_on_replay_is_found_under_any_name(source: str) -> None:
    exports = exports_of({"workflows.clocks": "from datetime import datetime as moment"})

    assert Module(source, exports).offences() != []


@pytest.mark.parametrize(
    "source",
    [
        "SEEN = {}",
        "SEEN = {'a': 1}",
        "SEEN: dict[str, int] = {'a': 1}",
        "SEEN: Mapping[str, list[int]] = {'a': [1]}",
        "SEEN = ['a']",
        "SEEN = {'a'}",
        "SEEN = [n for n in (1, 2)]",
        "SEEN = ({'a': 1}, 2)",
        "SEEN = list((1, 2))",
        "from collections import Counter as Seen\nSEEN = Seen()",
        "from itertools import count\nNEXT = count(1)",
        "class C:\n    seen = {'a': 1}",
        "class C:\n    seen: list[int] = [1]",
        "def f(seen={'a': 1}): return seen",
        "def f(*, seen=[]): return seen",
        "N = 1\ndef f():\n    global N\n    N += 1",
        "class C:\n    n = 1\n    def f(self): C.n += 1",
        "class C:\n    n = 1\n    def f(self): type(self).n = 2",
        "from hatchway import model\ndef f(): model.COUNTED_AHEAD = 2",
        "class Box:\n    pass\nBOX = Box()",
    ],
)
def test_what_runs_would_share_and_could_change_is_found(source: str) -> None:
    assert Module(source).offences() != []


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import datetime, timedelta\nD = timedelta(1)\ndef f(at: datetime) -> datetime: return at + D",
        "from datetime import datetime\ndef f(x): return isinstance(x, datetime)",
        "from uuid import UUID\ndef f(text): return UUID(text)",
        "import asyncio\nasync def f(x): await asyncio.shield(x)",
        "from collections.abc import Mapping\nWORDS: Mapping[str, str] = {'a': 'b'}",
        "WORDS = ('a', 'b')\nNAMES = frozenset({'a'})",
        "from hatchway.model import Payload\nclass P(Payload):\n    labels: list[str] = []",
        "class C:\n    def f(self): self.seen = {}",
        "__all__ = ['C']",
    ],
)
def test_what_is_the_same_on_replay_may_stay(source: str) -> None:
    assert Module(source).offences() == []


EXECUTES_NOTHING_OF = {
    "hatchway.converter",  # the type of an error
    "hatchway.config.schema",  # types
}


def test_every_module_of_ours_that_a_run_executes_is_read() -> None:
    """Of activities, workflows take references to methods and models, and run neither."""
    read = {_dotted(path) for path in MODULES} | EXECUTES_NOTHING_OF
    imported = {
        whole
        for path in MODULES
        for _, whole in Module(path.read_text()).imported
        if whole.startswith(("hatchway.", "workflows."))
    }

    assert {whole for whole in imported if whole not in read and whole.rpartition(".")[0] not in read} == set()
