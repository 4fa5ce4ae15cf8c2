"""The checker can fail: each of six bugs, put into a fleet, turns it red at the invariant that the bug breaks."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.chaos.bout import OF_A_BUG, OF_NONE, verdict
from tests.support.chaos.bugs import BUGS
from tests.support.chaos.campaign import end_of
from tests.support.chaos.evidence import Witness, gather
from tests.support.chaos.fleet import new_job, running_fleet
from tests.support.chaos.scalers import CLOUD
from tests.support.namespaces import until


async def test_without_a_bug_the_same_load_breaks_no_invariant() -> None:
    async with running_fleet(workers=2, gateways=1) as fleet:
        assert [str(violation) for violation in await verdict(fleet, OF_NONE)] == []


@pytest.mark.parametrize("bug", list(BUGS))
async def test_a_seeded_bug_turns_the_checker_red(bug: str) -> None:
    async with running_fleet(workers=2, gateways=1, bug=bug) as fleet:
        violations = await verdict(fleet, OF_A_BUG)

    assert BUGS[bug].breaks in {violation.kind.invariant for violation in violations}


async def test_a_claim_code_in_a_log_is_found() -> None:
    async with running_fleet(workers=1, gateways=1) as fleet, Witness(fleet) as witness:
        job_id = new_job("secret", 2.0)
        ended = asyncio.create_task(end_of(fleet, await fleet.provision(job_id, CLOUD)))
        await until(lambda: witness.codes, what="the claim code in the agent's environment")
        assert await ended == "completed"
        assert (await gather(fleet, witness, [])).secrets == []

        with fleet.children["gateway-1"].log.open("ab") as log:
            log.write(b'{"code": "' + next(iter(witness.codes)) + b'"}\n')

        assert (await gather(fleet, witness, [])).secrets == ["logs/gateway-1.log"]
