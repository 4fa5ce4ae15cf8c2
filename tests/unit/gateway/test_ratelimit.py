from __future__ import annotations

import asyncio

import pytest

from hatchway.gateway import ratelimit
from hatchway.gateway.ratelimit import RefusalLimit


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_limit_opens_again_a_minute_after_the_oldest_refusal(clock: Clock) -> None:
    limit = RefusalLimit(2, clock)
    limit.refused("192.0.2.1")
    clock.now += 20
    assert limit.wait_s("192.0.2.1") == 0
    limit.refused("192.0.2.1")

    assert limit.wait_s("192.0.2.1") == 40
    clock.now += 39.5
    assert limit.wait_s("192.0.2.1") == 1
    clock.now += 0.5
    assert limit.wait_s("192.0.2.1") == 0


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("a-socket", "a-socket", True),
    ],
)
def test_an_address_is_a_host_or_its_ipv6_network(clock: Clock, one: str, other: str, shared: bool) -> None:
    limit = RefusalLimit(1, clock)

    limit.refused(one)

    assert (limit.wait_s(other) > 0) is shared


def test_memory_is_bounded_and_the_latest_are_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratelimit, "MAX_ADDRESSES", 10)
    limit = RefusalLimit(1, clock)
    limit.refused("192.0.2.250")

    for n in range(9):
        limit.refused(f"192.0.2.{n}")
    limit.refused("192.0.2.250")
    limit.refused("192.0.2.100")

    assert limit.wait_s("192.0.2.250") > 0
    assert limit.wait_s("192.0.2.100") > 0
    assert limit.wait_s("192.0.2.0") == 0


async def test_an_address_over_its_limit_has_its_codes_looked_up_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many come at once, the database sees one in so long; and another address does not wait for them."""
    pauses: list[float] = []
    at_once = 0

    async def pause(seconds: float) -> None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        pauses.append(seconds)
        await yields(0)
        at_once -= 1

    yields = asyncio.sleep
    monkeypatch.setattr("asyncio.sleep", pause)
    limit = RefusalLimit(1)

    assert all(await asyncio.gather(*(limit.turn("192.0.2.1") for _ in range(20))))
    assert pauses == [ratelimit.TURN_S] * 20


async def test_who_comes_behind_too_many_of_its_own_address_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ratelimit, "MOST_WAITING", 3)
    limit = RefusalLimit(1)

    turns = await asyncio.gather(*(limit.turn(f"2001:db8::{n}") for n in range(5)), limit.turn("192.0.2.1"))
    again = await limit.turn("2001:db8::1")

    assert turns == [True] * 3 + [False] * 2 + [True]
    assert again
