"""Nothing hangs for ever: a limit for a fixture's end too, and for the end of the whole run.

pytest-timeout strikes once for each test, and its clock is stopped by the first failure: what hangs after that hangs
the run. So here its alarm rings again until somebody heeds it, and is set anew for the fixtures' ends after a failure.
What it breaks off is cancelled and given a moment, so that a test at its limit lets go of what its fixtures wait for.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

END_S = 120.0
"""For the ends of a failed test's fixtures. The longest here, a composed stack that is taken down, takes 30 s."""
AGAIN_S = 30.0
"""After an alarm that was not heeded, and for what hangs next."""
UNDO_S = 20.0
"""For a task to end that was broken off; less than AGAIN_S."""
EXIT_S = 120.0
"""For the interpreter to exit after the last word of a run: it waits for threads, which may wait for ever."""

ROOT = Path(__file__).parents[2]
DEEPEST, MOST = 12, 30


def pytest_configure() -> None:
    # A shell ignores Ctrl-C for what it starts in the background, and processes hand that down: a child of a test that
    # is sent a SIGINT would go on.
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """In place of pytest-timeout's own: the same alarm, that rings again."""
    if threading.current_thread() is not threading.main_thread():
        return None
    _wind(item, settings.timeout)
    return True


def _wind(item: pytest.Item, seconds: float) -> None:
    def ring(_number: int, _frame: object) -> None:
        # Where it strikes the step of a background task, or a callback, asyncio keeps the exception: it rings again.
        __tracebackhide__ = True
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        pytest.fail(
            f"Timeout (>{seconds}s): {item.nodeid} or the end of a fixture of it hangs. "
            f"What every task waits for:\n{waiting()}"
        )

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # where pytest-timeout looks for it
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)


@contextmanager
def _silent_after_a_failure() -> Iterator[None]:
    """pytest-timeout stops its clock when a failure is reported; a ring while the report is made would end the run."""
    try:
        yield
    except BaseException:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    with _silent_after_a_failure():
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    with _silent_after_a_failure():
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    # Still running after a test that passed: its one limit is for the fixtures' ends as well.
    stopped = signal.getitimer(signal.ITIMER_REAL)[0] == 0
    if stopped and threading.current_thread() is threading.main_thread():
        _wind(item, END_S)
    with _silent_after_a_failure():
        return (yield)


@pytest.fixture(scope="session", autouse=True)
async def _broken_off_in_order() -> None:
    """What the loop was made to leave, an alarm for instance, it does not leave pending: it is cancelled."""
    loop = asyncio.get_running_loop()
    run = loop.run_until_complete

    def run_until_complete(future: Any) -> Any:
        task = asyncio.ensure_future(future, loop=loop)
        try:
            return run(task)
        except BaseException:
            if not task.done():
                task.cancel()
                run(asyncio.wait([task], timeout=UNDO_S))
            raise

    loop.run_until_complete = run_until_complete  # type: ignore[method-assign]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    # A stream of several has ended its tests long before its process ends: it waits for the others, and the run that
    # started it ends it.
    if not hasattr(config, "workerinput"):
        faulthandler.dump_traceback_later(EXIT_S, exit=True)


def waiting() -> str:
    """A line for each task of the running loop: its innermost calls, and where in this tree they stand."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return "  (no loop runs)"
    lines = [f"  {task.get_name()}: {_stands_at(task.get_coro())}" for task in tasks]
    return "\n".join(sorted(line for line in lines if line.count(":") > 1)[:MOST]) or "  (no task of ours)"


def _stands_at(awaited: Any) -> str:
    """The chain of awaits below this coroutine, as far as it is known from inside of Python, outermost first."""
    places: list[str] = []
    while awaited is not None and len(places) < DEEPEST:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if frame is not None:
            path = Path(frame.f_code.co_filename)
            if "site-packages" not in path.parts and any(path.is_relative_to(tree) for tree in (ROOT, Path.cwd())):
                places.append(f"{frame.f_code.co_name} ({path.name}:{frame.f_lineno})")
            awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
        else:
            # A step of an asynchronous generator names it to the garbage collector only; a future ends the chain.
            awaited = next((one for one in gc.get_referents(awaited) if hasattr(one, "ag_frame")), None)
    return " > ".join(places)
