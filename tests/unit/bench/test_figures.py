"""How ratios are taken and judged: what makes `make bench` fail."""

from __future__ import annotations

import pytest

from bench.figures import Against, Amount, Line, Pair, out_of_bounds, take


@pytest.mark.parametrize(
    ("ours", "floor", "fails"),
    [
        pytest.param([30, 40, 50], 0.4, False, id="the median is on the floor"),
        pytest.param([30, 39, 50], 0.4, True, id="the median is under it"),
        pytest.param([1, 41, 42], 0.4, False, id="one spoilt pair does not fail the run"),
        pytest.param([90, 39, 38], 0.4, True, id="one lucky pair does not save it"),
        pytest.param([1, 1, 1], None, False, id="a line that only informs"),
    ],
)
def test_a_line_fails_the_run_when_its_median_is_under_its_floor(
    ours: list[float], floor: float | None, fails: bool
) -> None:
    line = Line("reserve", floor, [Pair(rate, 100.0) for rate in ours])

    assert (out_of_bounds([line]) == [line]) is fails
    assert ("UNDER THE FLOOR" in str(line)) is fails


def test_a_line_shows_its_ratio_floor_and_spread() -> None:
    line = Line("reserve", 0.35, [Pair(rate, 100.0) for rate in (30, 40, 50, 60, 70)])

    assert str(line).split() == (
        ["reserve", "0.50", ">=", "0.35", "0.30", "-", "0.70", "50.0", "/", "100.0", "/s", "ok"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("taken", "fails"),
    [
        pytest.param([50.0, 100.0, 500.0], False, id="the median is on the ceiling"),
        pytest.param([50.0, 101.0, 102.0], True, id="the median is above it"),
    ],
)
def test_a_time_fails_the_run_when_its_median_is_above_its_ceiling(taken: list[float], fails: bool) -> None:
    lines: list[Line | Amount] = [
        Amount("a hand-over", 100.0, taken),
        Line("the same as a ratio", None, [Pair(time, 100.0) for time in taken], ceiling=1.0, unit="ms"),
    ]

    assert (out_of_bounds(lines) == lines) is fails
    assert [("ABOVE THE CEILING" in str(line)) for line in lines] == [fails] * 2


async def test_both_sides_take_turns_and_each_pair_has_its_own_ratio() -> None:
    turns: list[str] = []

    async def rate(name: str, of: list[float]) -> float:
        turns.append(name)
        return of[turns.count(name) - 1]

    first, second = await take(
        lambda: rate("ours", [10, 100]),
        Against("first", 0.5, lambda: rate("first", [20, 200])),
        Against("second", None, lambda: rate("second", [40, 100])),
        repetitions=2,
    )

    assert turns == ["ours", "first", "second"] * 2
    assert [pair.ratio for pair in first.pairs] == [0.5, 0.5]
    assert [pair.ratio for pair in second.pairs] == [0.25, 1.0]
    assert (first.title, first.floor, second.title, second.floor) == ("first", 0.5, "second", None)
