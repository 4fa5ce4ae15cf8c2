from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import services

Run = Callable[..., pytest.RunResult]

PASSES = "@pytest.mark.scenario('S01')\ndef test_a(): pass\n"
LISTED = "# comment\n\nS01 killed between call and record\n"


def test_a_full_run_prints_how_many_tests_passed_for_each_scenario(run: Run) -> None:
    more = "@pytest.mark.scenario('S01', 'S03')\ndef test_b(): pass\n"

    result = run(listed=LISTED, test_it=PASSES + more)

    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["S01    2  killed between call and record", "S03    1"])


NONE_PASSED = {
    "nothing claims it": "def test_a(): pass\n",
    # Sources of runs within this one: what they skip, or expect to fail, must count as no proof.
    "its test is skipped": "@pytest.mark.scenario('S01')\n@pytest.mark.skip\ndef test_a(): pass\n",
    "its test is expected to fail": "@pytest.mark.scenario('S01')\n@pytest.mark.xfail\ndef test_a(): assert 0\n",
    "its test passes against expectation": "@pytest.mark.scenario('S01')\n@pytest.mark.xfail\ndef test_a(): pass\n",
}


@pytest.mark.parametrize("source", NONE_PASSED.values(), ids=NONE_PASSED.keys())
def test_a_full_run_fails_when_a_listed_scenario_ran_none(run: Run, source: str) -> None:
    result = run(listed=LISTED, test_it=source)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["S01    0  ran none*", "S01: listed in tests/scenarios.txt, but no test*has passed"])


NARROWED = {
    "a path": ("tests/test_it.py",),
    "-k": ("-k", "test_a"),
    "-m": ("-m", "not needs"),
    "--deselect": ("--deselect", "tests/test_it.py::test_b"),
    "--ignore": ("--ignore", "tests/other"),
}


@pytest.mark.parametrize("arguments", NARROWED.values(), ids=NARROWED.keys())
def test_a_narrowed_run_does_not_ask_for_every_scenario(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, listed=LISTED, test_it="def test_a(): pass\ndef test_b(): pass\n")

    assert result.ret == pytest.ExitCode.OK


def test_leaving_out_the_chaos_suite_is_still_a_full_run(run: Run) -> None:
    result = run("--ignore=tests/chaos", listed=LISTED, test_it="def test_a(): pass\n")

    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("listed", ["S1 short\n", "S01 a\nS01 b\n", "what happened\n"])
def test_a_list_that_cannot_be_read_stops_the_run_and_names_the_line(run: Run, listed: str) -> None:
    result = run(listed=listed, test_it=PASSES)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*scenarios.txt:{listed.count(chr(10))}:*"])


def test_a_claim_that_is_no_scenario_name_stops_the_run(run: Run) -> None:
    result = run(test_it="@pytest.mark.scenario('S1')\ndef test_a(): pass\n")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*claims scenario 'S1'*"])


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "PROBES", {"docker": lambda: "no engine answers", "registry": lambda: None})


NEEDS = "@pytest.mark.needs('registry', 'docker')\n" + PASSES


@pytest.mark.usefixtures("no_docker")
def test_a_missing_service_takes_its_tests_out_and_one_line_says_so(run: Run) -> None:
    result = run(listed=LISTED, test_it=NEEDS + "def test_b(): pass\n")

    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(
        ["S01    0  did not run: a service is missing*", "did not run: 1 tests need docker: no engine answers"]
    )


@pytest.mark.usefixtures("no_docker")
def test_a_required_service_that_is_missing_stops_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCHWAY_TEST_REQUIRE", "registry, docker")

    result = run(test_it=NEEDS)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*asks for what is not here: docker: no engine answers"])


@pytest.mark.parametrize(
    ("require", "source", "said"),
    [
        ("dokcer", PASSES, "*HATCHWAY_TEST_REQUIRE names dokcer*"),
        ("", "@pytest.mark.needs('dokcer')\n" + PASSES, "*needs 'dokcer', but only these are known*"),
    ],
)
def test_a_service_that_nobody_knows_stops_the_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, require: str, source: str, said: str
) -> None:
    monkeypatch.setenv("HATCHWAY_TEST_REQUIRE", require)

    result = run(test_it=source)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
