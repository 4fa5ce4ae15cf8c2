"""Agents that registered after the backup that was restored: their workflows remember the hash of their token."""

from __future__ import annotations

import contextlib
import hashlib
import uuid

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from activities.restoring import Restoring
from hatchway.client import Started
from hatchway.model import AdoptedSpec, AdoptRequest, EndReason, ProvisionState
from hatchway.store.presence import Beat, Presence
from hatchway.store.tokens import Tokens
from tests.integration.reap.facts import aged, gateway
from tests.integration.reclaim.rig import Home
from tests.integration.recovery.test_restored_backup import Backup
from tests.support.postgres_fixtures import PostgresServer

S = ProvisionState
TOKEN_HASH = hashlib.sha256(b"a token").hexdigest()


@pytest.fixture
def backup(postgres: PostgresServer, database_url: str) -> Backup:
    return Backup(postgres, database_url)


async def _registers(home: Home, started: Started, token_hash: str = TOKEN_HASH, registration: str = "r-1") -> None:
    """As a gateway has an agent adopted that holds a token."""
    request = AdoptRequest(
        agent_id=started.agent_id, instance_id="gateway-1", registration_id=registration, token_hash=token_hash
    )
    await home.lab.handle(started).execute_update(
        "adopt", request, id=f"{registration}-{uuid.uuid4().hex}", result_type=AdoptedSpec
    )
    await home.lab.reaches(started, S.ACTIVE)


async def _heard(home: Home, started: Started, registration: str = "r-1") -> Beat:
    """What its next heartbeat is answered, at a gateway that has just started."""
    token = await Tokens(home.lab.db).lookup(TOKEN_HASH)
    assert token is not None, "its token is not known"
    assert token.agent_id == started.agent_id
    beats = await Presence(home.lab.db).beat("gateway-1", [(started.agent_id, registration)])
    return beats[started.agent_id].answer


async def _ends_well(home: Home, started: Started, registration: str = "r-1") -> None:
    await home.lab.complete(started, registration=registration)
    assert (await home.lab.outcome(started)).end_reason is EndReason.COMPLETED
    await home.lab.nothing_left()


async def test_an_agent_whose_row_is_older_than_its_registration_stays_when_reclaim_comes_first(
    home: Home, backup: Backup
) -> None:
    started = await home.lab.provision(job_id="job-1")
    await home.lab.reaches(started, S.AWAITING_ADOPTION)
    backup.make()
    await _registers(home, started)

    backup.restore()
    passes = [await home.reclaim(), await home.reclaim()]
    await gateway(home.lab.db)
    heard = await _heard(home, started)
    swept = await home.lab.sweep()

    assert [outcome.restored for outcome in passes] == [[started.agent_id], []]
    assert heard is Beat.OK
    assert (swept.failed, swept.steps["reap"].done["condemned"]) == ({}, 0)
    await _ends_well(home, started)


async def test_the_reaper_gives_an_overdue_row_its_registration_back_before_it_judges(
    home: Home, backup: Backup
) -> None:
    started = await home.lab.provision(job_id="job-1")
    await home.lab.reaches(started, S.AWAITING_ADOPTION)
    backup.make()
    await _registers(home, started)

    backup.restore()
    await gateway(home.lab.db)
    swept = await home.lab.sweep()

    assert (swept.failed, swept.steps["reap"].done["condemned"]) == ({}, 0)
    assert await _heard(home, started) is Beat.OK
    await _ends_well(home, started)


UNREADABLE = {
    "Temporal does not answer": RPCError("away", RPCStatusCode.UNAVAILABLE, b""),
    "its key is missing here": RuntimeError("no key of this name"),
}


@pytest.mark.parametrize("trouble", UNREADABLE.values(), ids=UNREADABLE)
async def test_an_overdue_row_whose_history_cannot_be_read_is_left_to_the_next_pass(
    home: Home, backup: Backup, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    """What could not be found out speaks for the agent: it may be at work."""
    started = await home.lab.provision(job_id="job-1")
    await home.lab.reaches(started, S.AWAITING_ADOPTION)
    backup.make()
    await _registers(home, started)
    backup.restore()
    await gateway(home.lab.db)

    with monkeypatch.context() as broken:

        async def unreadable(*_: object) -> bool:
            raise trouble

        broken.setattr(Restoring, "restore_adoption", unreadable)
        with contextlib.suppress(WorkflowFailureError):  # a pass that could not see to everybody says so
            await home.lab.sweep()
    row = await home.lab.slots.get(started.agent_id)

    assert row is not None
    assert row.state.value == "spawned"
    assert (await home.lab.sweep()).steps["reap"].done["condemned"] == 0
    assert await _heard(home, started) is Beat.OK
    await _ends_well(home, started)


@pytest.mark.parametrize("reset", [False, True], ids=["as it was started", "reset"])
async def test_an_agent_that_began_since_gets_its_row_back_with_its_token(
    home: Home, backup: Backup, *, reset: bool
) -> None:
    backup.make()
    started = await home.lab.provision(job_id="job-1")
    await home.lab.reaches(started, S.AWAITING_ADOPTION)
    await _registers(home, started)
    if reset:
        started = await home.lab.reset(started, to_start=True)
        await home.lab.reaches(started, S.ACTIVE)

    backup.restore()
    outcome = await home.reclaim()
    await gateway(home.lab.db)

    assert outcome.restored == [started.agent_id]
    assert await _heard(home, started) is Beat.OK
    await _ends_well(home, started)


async def test_the_registration_that_counts_is_the_last_one(home: Home, backup: Backup) -> None:
    """Its first process had fallen silent, as had its gateway, and another one took over."""
    backup.make()
    started = await home.lab.provision(job_id="job-1")
    await home.lab.reaches(started, S.AWAITING_ADOPTION)
    await _registers(home, started, hashlib.sha256(b"the first token").hexdigest())
    await home.lab.db.fetch_all("update scaler_instances set last_seen_at = now() - interval '1 hour'")
    await home.lab.db.fetch_all("update scaler_agent_presence set last_seen_at = now() - interval '1 hour'")
    await _registers(home, started, registration="r-2")

    backup.restore()
    await home.reclaim()
    await gateway(home.lab.db)

    assert await _heard(home, started, "r-2") is Beat.OK
    assert (await Presence(home.lab.db).beat("gateway-1", [(started.agent_id, "r-1")]))[
        started.agent_id
    ].answer is Beat.OTHER_REGISTRATION
    await _ends_well(home, started, "r-2")


async def test_an_agent_that_has_not_registered_is_left_as_it_is(home: Home) -> None:
    """However long it takes: its workflow remembers no adoption, and its claim still counts."""
    started = await home.lab.provision(job_id="job-1")
    await home.lab.reaches(started, S.AWAITING_ADOPTION)
    await aged(home.lab.db, "spawned_at", 3600, started.agent_id)
    claims = await home.lab.db.fetch_value("select count(*) from scaler_pending_claims")

    outcome = await home.reclaim()

    row = await home.lab.slots.get(started.agent_id)
    assert (outcome.restored, outcome.failed) == ([], {})
    assert row is not None
    assert (row.state.value, row.adopted_by) == ("spawned", None)
    assert await home.lab.db.fetch_value("select count(*) from scaler_pending_claims") == claims
    await home.lab.handle(started).cancel()
    await home.lab.nothing_left()


async def test_a_restored_row_has_the_deadline_that_its_workflow_has(home: Home, backup: Backup) -> None:
    """To the instant: no worker's clock, which may be wrong, has a say in it."""
    backup.make()
    started = await home.lab.provision(job_id="job-1")
    status = await home.lab.reaches(started, S.AWAITING_ADOPTION)
    backup.restore()

    outcome = await home.reclaim()

    row = await home.lab.slots.get(started.agent_id)
    assert outcome.restored == [started.agent_id]
    assert row is not None
    assert row.deadline_at == status.deadline_at
    await home.lab.handle(started).cancel()
    await home.lab.nothing_left()
