"""A teardown ends the compute, and its host tells of that end like of any other: it must not become the reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from hatchway.client import ProvisionFailed, Started
from hatchway.errors import ErrorType
from hatchway.model import EndReason, ProvisionState
from tests.support.lab import Lab
from tests.support.scripted import Gate
from tests.support.states import AT

S = ProvisionState


async def _late(lab: Lab) -> Started:
    return await lab.provision(job_id="job-1", adoption_timeout=0.3)


async def _outlived(lab: Lab) -> Started:
    started = await lab.provision(job_id="job-1", max_lifetime=0.5)
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    return started


async def _released(lab: Lab) -> Started:
    started = await AT["awaiting-adoption"](lab)
    await lab.release(started)
    return started


async def _released_at_work(lab: Lab) -> Started:
    started = await AT["active"](lab)
    await lab.release(started, EndReason.OPERATOR, now=True)
    return started


async def _called_off(lab: Lab) -> Started:
    """Released between the effect of its spawn and the answer: the spawn removes what it made."""
    lab.backend.after_create = gate = Gate()
    started = await lab.provision(job_id="job-1")
    await gate.reached.wait()
    await lab.release(started)
    return started


ENDS: dict[str, tuple[Callable[[Lab], Awaitable[Started]], str]] = {
    "adoption-timeout": (_late, ErrorType.ADOPTION_TIMEOUT),
    "max-lifetime": (_outlived, ErrorType.LIFETIME_EXCEEDED),
    "released": (_released, ErrorType.RELEASED),
    "released-at-work": (_released_at_work, EndReason.OPERATOR),
    "called-off": (_called_off, ErrorType.RELEASED),
}


@pytest.mark.parametrize("end", ENDS)
async def test_an_exit_that_the_teardown_brought_about_is_not_the_reason(lab: Lab, end: str) -> None:
    bring_about, expected = ENDS[end]
    told: list[str] = []

    async def host_tells(agent_id: str) -> None:
        await lab.exits(started, code=143, tail="trying to reach the gateway")
        told.append(agent_id)

    lab.backend.after_destroy = host_tells
    started = await bring_about(lab)

    try:
        ended: str = (await lab.outcome(started)).end_reason
    except ProvisionFailed as e:
        ended = e.error_type
        lab.ended_with = e

    assert told == [started.agent_id]
    assert ended == expected
    if end == "adoption-timeout":
        assert str(lab.ended_with).endswith("its last output:\ntrying to reach the gateway")
    await lab.nothing_left()
