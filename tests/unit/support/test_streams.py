"""A run in two streams counts, fails and hides as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., pytest.RunResult]

LISTED = "S01 killed between call and record\nS02 an endless name not unique\n"


def claims(scenario: str) -> str:
    return f"@pytest.mark.scenario({scenario!r})\ndef test_a(): pass\n"


def test_what_passed_in_either_stream_is_counted(run: Run) -> None:
    result = run(streams=True, listed=LISTED, test_it=claims("S01") + "def test_b(): pass\n", test_other=claims("S02"))

    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["S01    1  killed between*", "S02    1  an endless*"])


def test_a_scenario_that_no_stream_ran_fails_the_run(run: Run) -> None:
    result = run(streams=True, listed=LISTED, test_it=claims("S01"), test_other="def test_b(): pass\n")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["S02    0  ran none*"])


def test_what_a_missing_service_hides_is_said_once(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    needy = "@pytest.mark.needs('pgbouncer')\n" + claims("S02")

    result = run(streams=True, listed=LISTED, test_it=claims("S01"), test_other=needy)

    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["S02    0  did not run: a service is missing*", "did not run: 1 tests need pgbouncer*"]
    )


def test_what_a_machine_has_once_is_used_by_one_stream(run: Run, pytester: pytest.Pytester) -> None:
    source = "import os\ndef test_a(request): print(os.environ['PYTEST_XDIST_WORKER'], request.node.nodeid)\n"
    docker = pytester.mkdir("tests") / "docker"
    docker.mkdir()
    for n in range(6):
        (docker / f"test_{n}.py").write_text(source)

    result = run("-rP", streams=True, test_it=source, test_other=source)

    assert result.ret == pytest.ExitCode.OK
    used = {line.split()[0] for line in result.outlines if line.startswith("gw") and "tests/docker/" in line}
    assert len(used) == 1
