"""Links between workers, gateways, agents, Postgres and Temporal that lose every packet for seconds, at random.

For CHAOS_LOSE_MINUTES (0.5), from CHAOS_SEED (drawn and printed), in a network namespace that the test makes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos.storm import Strike

MINUTES = float(os.environ.get("CHAOS_LOSE_MINUTES", "0.5"))
A_MINUTE = 20
"""Provisions, at least."""


@pytest.fixture
def network() -> Iterator[str]:
    """A network namespace with nothing but a loopback interface."""
    name = f"hatchway-chaos-{uuid.uuid4().hex[:8]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    subprocess.run(["ip", "-netns", name, "link", "set", "lo", "up"], check=True)
    yield name
    subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.mark.needs("nftables", "root")
@pytest.mark.scenario("S37")
@pytest.mark.timeout(MINUTES * 60 + 600)
async def test_while_links_lose_their_packets_nothing_leaks_and_nothing_busy_is_ended(
    network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(2**32))  # noqa: S311 - it is printed
    with capsys.disabled():
        print(f"\nCHAOS_SEED={seed} CHAOS_LOSE_MINUTES={MINUTES:g}")
    command = ["ip", "netns", "exec", network, sys.executable, "-m", "tests.support.chaos.losing"]

    storm = await asyncio.create_subprocess_exec(
        *command, str(seed), str(MINUTES), stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    try:
        said, _ = await storm.communicate()
    except asyncio.CancelledError:
        storm.kill()
        raise

    assert storm.returncode == 0
    found = json.loads(said.splitlines()[-1])
    with capsys.disabled():
        print(found["figures"], f"\n  packets lost: {found['lost_packets']}")
    assert found["violations"] == []
    assert found["faults"] > 0
    assert found["lost_packets"] > 10 * found["faults"]
    assert found["provisions"] >= MINUTES * A_MINUTE


def test_a_seed_gives_the_same_lost_links_again() -> None:
    strikes = [Strike.of(7, number, cuts_only=True) for number in range(100)]

    assert strikes == [Strike.of(7, number, cuts_only=True) for number in range(100)]
    assert {strike.action.value for strike in strikes} == {"cut"}
    assert {strike.component.value for strike in strikes} == {
        "worker", "gateway", "Postgres", "Temporal server", "agent"
    }  # fmt: skip
