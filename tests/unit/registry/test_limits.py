"""What a registry that limits asks for, and for how long it is left alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hatchway.registry.limits import BASE, LONGEST, MOST_ASKED, SHORTEST, Account, RegistryLimits, asked_wait

HUB = Account("docker.io")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(clock: Clock) -> RegistryLimits:
    return RegistryLimits(clock)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("toomanyrequests: retry-after: 428.97µs, allowed: 44000/minute", 0.00042897),
        ("toomanyrequests: retry-after: 1.5ms, allowed: 44000/minute", 0.0015),
        ("429 Too Many Requests, Retry-After: 30", 30),
        ("toomanyrequests: Rate exceeded, retry after 1m30s", 90),
        ("retry-after=1h", 3600),
        ("toomanyrequests: You have reached your pull rate limit.", None),
        ("retry after a while", None),
    ],
)
def test_what_a_registry_asks_for_is_read_from_its_words(text: str, seconds: float | None) -> None:
    assert asked_wait(text) == (None if seconds is None else timedelta(seconds=seconds))


def test_what_was_asked_for_is_kept_and_then_over(limits: RegistryLimits, clock: Clock) -> None:
    wait = limits.limited(HUB, timedelta(seconds=40))
    clock.now += 39
    still = limits.left(HUB)
    clock.now += 1

    assert wait == timedelta(seconds=40)
    assert still == timedelta(seconds=1)
    assert limits.left(HUB) is None


@pytest.mark.parametrize(
    ("asked", "kept"), [(timedelta(microseconds=1), SHORTEST), (timedelta(days=3), MOST_ASKED)], ids=["short", "long"]
)
def test_what_was_asked_for_is_bounded(limits: RegistryLimits, asked: timedelta, kept: timedelta) -> None:
    assert limits.limited(HUB, asked) == kept


def test_without_a_word_the_pause_doubles_with_jitter_up_to_its_limit(limits: RegistryLimits, clock: Clock) -> None:
    pauses = []
    for _ in range(12):
        pauses.append(limits.limited(HUB, None))
        clock.now += pauses[-1].total_seconds()

    for number, pause in enumerate(pauses):
        whole = min(BASE * 2**number, LONGEST)
        assert whole * 0.8 <= pause <= whole


def test_refusals_of_questions_that_were_under_way_together_count_once(limits: RegistryLimits) -> None:
    assert max(limits.limited(HUB, None) for _ in range(20)) <= BASE


def test_one_account_keeps_no_other_one_waiting(limits: RegistryLimits) -> None:
    limits.limited(HUB, timedelta(minutes=5))

    assert limits.left(HUB) is not None
    assert limits.left(Account("docker.io", "somebody")) is None
    assert limits.left(Account("ghcr.io")) is None


def test_an_answer_ends_what_was_refused_before(limits: RegistryLimits, clock: Clock) -> None:
    for _ in range(3):
        clock.now += limits.limited(HUB, None).total_seconds()
    limits.answered(HUB)

    assert limits.limited(HUB, None) <= BASE
