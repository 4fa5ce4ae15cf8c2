"""Which field faults a test run has excluded: scenario -> tests passed.

`@pytest.mark.scenario("S01")` (several names are fine) claims a scenario for a test. The run ends with one line each. A
full run, one that neither paths nor options have narrowed, fails when a scenario of tests/scenarios.txt had no passing
test: a scenario cannot drop out of the suite unnoticed. One whose tests were all taken out for a missing service is
named, and is no failure: HATCHWAY_TEST_REQUIRE is what makes that one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.services import ITEMS_NOT_RUN
from tests.support.streams import Stream, is_stream, tell, told

CLAIMED, HIDDEN = "scenarios_claimed", "scenarios hidden"
LIST_NAME = "scenarios.txt"
NAME = re.compile(r"^S\d{2}$")


@dataclass
class Ledger:
    """What one run has seen of its scenarios."""

    listed: dict[str, str]
    """Name -> what happened there, in the order of the file."""
    full: bool
    passed: Counter[str] = field(default_factory=Counter)
    hidden: set[str] = field(default_factory=set)
    """Claimed by tests that did not run because their service is missing."""

    def missing(self) -> list[str]:
        """Listed, and neither passed nor hidden: what makes a full run fail."""
        return [n for n in self.listed if not self.passed[n] and n not in self.hidden]


LEDGER = pytest.StashKey[Ledger]()


def read_list(path: Path) -> dict[str, str]:
    """The listed scenarios: `S01 what happened` a line, `#` for comments. Raises UsageError, naming the line."""
    listed: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, title = line.partition(" ")
        if not NAME.match(name) or name in listed:
            raise pytest.UsageError(f"{path}:{number}: {name!r} is no scenario name, or stands there twice")
        listed[name] = title.strip()
    return listed


def _is_full(config: pytest.Config) -> bool:
    option = config.option
    narrowed = (
        config.args_source is not pytest.Config.ArgsSource.TESTPATHS,
        option.keyword,
        option.markexpr,
        option.deselect,
        option.collectonly,
        getattr(option, "lf", False),
        getattr(option, "stepwise", False),
        # The kill-at-every-point suite is a target of its own, and claims nothing that the rest does not claim.
        [p for p in option.ignore or [] if Path(p).name != "chaos"],
        option.ignore_glob,
    )
    return not any(narrowed)


def pytest_configure(config: pytest.Config) -> None:
    path = config.rootpath / "tests" / LIST_NAME
    ledger = config.stash[LEDGER] = Ledger(read_list(path) if path.is_file() else {}, _is_full(config))
    config.pluginmanager.register(Counting(ledger), "scenarios counted")


def _claims(item: pytest.Item) -> list[str]:
    return [name for marker in item.iter_markers("scenario") for name in marker.args]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Stream) -> None:
    node.config.stash[LEDGER].hidden.update(told(node, HIDDEN, []))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    yield  # after the tests whose service is missing were taken out
    ledger = config.stash[LEDGER]
    not_run = config.stash.get(ITEMS_NOT_RUN, [])
    for item in [*items, *not_run]:
        for name in _claims(item):
            if not NAME.match(name):
                raise pytest.UsageError(f"{item.nodeid} claims scenario {name!r}: names look like S01")
    ledger.hidden = {name for item in not_run for name in _claims(item)}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # Written into the report, for that is what a stream hands to the process that counts.
    passed = report.when == "call" and report.passed and not hasattr(report, "wasxfail")
    setattr(report, CLAIMED, _claims(item) if passed else [])
    return report


class Counting:
    """Counts what passed, in the process that prints the end of the run."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._ledger.passed.update(getattr(report, CLAIMED, ()))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    ledger = session.config.stash[LEDGER]
    if is_stream(session.config):
        tell(session.config, HIDDEN, sorted(ledger.hidden))
    elif ledger.full and exitstatus == pytest.ExitCode.OK and ledger.missing():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    ledger = config.stash[LEDGER]
    names = sorted({*ledger.passed, *(ledger.listed if ledger.full else ())})
    if not names:
        return
    terminalreporter.section("scenarios: tests passed")
    missing = set(ledger.missing()) if ledger.full else set()
    for name in names:
        count = ledger.passed[name]
        note = "  ran none" if name in missing else "  did not run: a service is missing" if not count else ""
        terminalreporter.write_line(f"{name} {count:4d}{note}  {ledger.listed.get(name, '')}".rstrip(), red=bool(note))
    if missing:
        terminalreporter.write_line(
            f"{', '.join(sorted(missing))}: listed in tests/{LIST_NAME}, but no test that claims it has passed",
            red=True,
        )
