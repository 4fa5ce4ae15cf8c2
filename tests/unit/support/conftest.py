"""Runs pytest inside pytest, with the plugins under test and nothing else of ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PLUGINS = ("tests.support.streams", "tests.support.services", "tests.support.scenarios")
IN_STREAMS = ("-p", "xdist", "-n", "2")


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Writes a suite (`files`: name -> source, `listed`: tests/scenarios.txt) and runs it with `arguments`.

    With `streams` two processes run it for the one whose result this is.

    HATCHWAY_TEST_REQUIRE is unset, unless the test sets it.
    """
    monkeypatch.delenv("HATCHWAY_TEST_REQUIRE", raising=False)
    # Loading every installed plugin again for each inner run takes a second.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(*arguments: str, listed: str = "", streams: bool = False, **files: str) -> pytest.RunResult:
        tests = pytester.path / "tests"
        tests.mkdir(exist_ok=True)
        (tests / "scenarios.txt").write_text(listed)
        for name, source in files.items():
            (tests / f"{name}.py").write_text(f"import pytest\n{source}")
        pytester.makeini(
            "[pytest]\ntestpaths = tests\nmarkers =\n  scenario(name): x\n  needs(*services): x\n"
            "addopts = -p no:cacheprovider --strict-markers"
        )
        plugins = [a for plugin in PLUGINS for a in ("-p", plugin)]
        # In this process, so that a test can exchange the probes of services for its own.
        return pytester.runpytest_inprocess(*plugins, *(IN_STREAMS if streams else ()), *arguments)

    return run
