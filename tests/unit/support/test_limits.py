"""A test that hangs, and a fixture that hangs at its end, fail with what they waited for; the run goes on and ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]

QUICK = """
from tests.support import limits
limits.END_S, limits.AGAIN_S, limits.UNDO_S, limits.EXIT_S = 0.5, 1.0, 0.5, 1.0
"""

ENDS_THAT_HANG = {
    "async": """
@pytest.fixture
async def hanging():
    yield
    await asyncio.Event().wait()
""",
    "blocking": """
@pytest.fixture
def hanging():
    yield
    threading.Event().wait()
""",
    "stubborn": """
@pytest.fixture
async def hanging():
    yield
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
""",
    "busy": """
@pytest.fixture
async def hanging():
    async def busy():
        while True:
            time.sleep(0.01)  # most signals arrive here, in a task that nobody awaits
            await asyncio.sleep(0)
    task = asyncio.create_task(busy())
    yield
    await asyncio.Event().wait()
""",
}

IMPORTS = "import asyncio, contextlib, threading, time\nimport pytest\n"


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one file of tests in a process of its own, for it has one alarm clock. It is given 30 s."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(source: str, limit: float = 300, streams: int = 0) -> pytest.RunResult:
        pytester.makeconftest(QUICK)
        pytester.makepyfile(test_it=IMPORTS + source)
        pytester.makeini(
            "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = session\n"
            f"asyncio_default_test_loop_scope = session\naddopts = -p no:cacheprovider\ntimeout = {limit}\n"
            f"pythonpath = {' '.join(p for p in sys.path if p)}"
        )
        plugins = ["pytest_asyncio.plugin", "pytest_timeout", "tests.support.limits", *["xdist.plugin"] * bool(streams)]
        options = ["-n", str(streams)] if streams else []
        return pytester.runpytest_subprocess(*(a for name in plugins for a in ("-p", name)), *options, "-v", timeout=30)

    return run


@pytest.mark.parametrize("end", list(ENDS_THAT_HANG))
def test_an_end_that_hangs_after_a_failure_is_an_error_and_the_run_goes_on(run: Run, end: str) -> None:
    # What heeds no cancel is in the way of the loop's own end as well.
    errors, limit = (2, 4) if end == "stubborn" else (1, 300)

    result = run(
        f"""
{ENDS_THAT_HANG[end]}
@pytest.fixture
def outer():
    yield
    print("the outer fixture has ended", flush=True)

def test_fails(outer, hanging):
    assert False

async def test_next():
    await asyncio.sleep(0)
""",
        limit,
    )

    result.assert_outcomes(failed=1, errors=errors, passed=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_fails*", "*the outer fixture has ended*"])


def test_a_hanging_end_says_what_it_waits_for(run: Run) -> None:
    result = run("""
async def the_reply_of_a_worker():
    await asyncio.Event().wait()

@pytest.fixture
async def hanging():
    yield
    await the_reply_of_a_worker()

def test_fails(hanging):
    assert False
""")

    result.stdout.fnmatch_lines(["*the_reply_of_a_worker*test_it.py:*"])


def test_what_a_test_holds_at_its_limit_is_let_go_before_its_fixtures_end(run: Run) -> None:
    result = run(
        """
@pytest.fixture
async def lock():
    lock = asyncio.Lock()
    yield lock
    await lock.acquire()

async def test_hangs(lock):
    async with lock:
        await asyncio.Event().wait()
""",
        limit=0.5,
    )

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Timeout*0.5s*"])


def test_a_thread_that_hangs_does_not_keep_the_run_from_ending(run: Run) -> None:
    result = run(
        """
async def test_leaves_a_thread():
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    await asyncio.sleep(0)
""",
        limit=4,
    )

    assert result.ret != pytest.ExitCode.OK
    result.assert_outcomes(passed=1, errors=1)


@pytest.mark.parametrize("ignored", [True, False], ids=["in the background", "in a terminal"])
def test_a_child_hears_ctrl_c_wherever_the_run_was_started(run: Run, ignored: bool) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        result = run("""
import signal, subprocess, sys

def test_interrupts():
    says = "import time; print('up', flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", says], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    try:
        assert child.wait(10) != 0
    finally:
        child.kill()
        child.communicate()
""")
    finally:
        signal.signal(signal.SIGINT, before)

    result.assert_outcomes(passed=1)


def test_a_stream_that_ends_long_before_the_other_is_not_taken_for_one_that_hangs(run: Run) -> None:
    result = run(
        """
@pytest.mark.parametrize("takes_s", [0, 0, 0, 4])
def test_takes(takes_s):
    time.sleep(takes_s)
""",
        streams=2,
    )

    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=4)
    assert "Timeout" not in result.stderr.str()
