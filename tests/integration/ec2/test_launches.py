"""Launches on a cloud that has no capacity, loses replies and shows late: one instance for each agent all the same."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from hatchway.backends.base import SpawnSpec
from hatchway.backends.ec2 import Ec2Backend
from hatchway.errors import PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from tests.contract.backend import destroy, fresh_agent_id, silent
from tests.support.fake_ec2.cloud import FakeEc2
from tests.support.fake_ec2.contract import INSTALLATION, Ec2Harness
from tests.support.fake_ec2.specs import QUICK, ec2_scaler, ec2_spec

SPOT, ON_DEMAND, LARGER = "m7i.large spot", "m7i.large", "m7i.xlarge"
OFFERS = [{"instanceType": "m7i.large", "spot": True}, {"instanceType": "m7i.large"}, {"instanceType": "m7i.xlarge"}]
LATE_S = 0.4


def spec(
    cloud: FakeEc2, agent_id: str, claim: str = "claim-1", offers: int = 3, *, asked_before: bool = False
) -> SpawnSpec:  # fmt: skip
    """An agent with the first so many offers. Another claim is what another attempt has."""
    scaler = ec2_scaler(cloud.url, ec2={"userData": "exec sleep 3600", "offers": OFFERS[:offers]})
    env = {"KICI_SCALER_CLAIM_CODE": claim, "KICI_AGENT_ID": agent_id}
    return ec2_spec(scaler, agent_id, env, INSTALLATION, asked_before=asked_before)


def offer_of(cloud: FakeEc2, agent_id: str) -> str:
    (machine,) = cloud.live(agent_id)
    spot = machine.asked.get("InstanceMarketOptions.MarketType") == "spot"
    return f"{machine.asked['InstanceType']}{' spot' if spot else ''}"


@pytest.mark.scenario("S19")
@pytest.mark.parametrize(
    ("short_of", "taken"), [({SPOT}, ON_DEMAND), ({SPOT, ON_DEMAND}, LARGER), ({ON_DEMAND, LARGER}, SPOT)]
)
async def test_the_first_offer_that_there_is_is_taken_at_once(
    harness: Ec2Harness, cloud: FakeEc2, short_of: set[str], taken: str
) -> None:
    """EC2 answers a lack of capacity with a 500, which the SDK would ask again and again, for seven seconds or more."""
    agent_id = fresh_agent_id()
    await harness.backend.find(agent_id)  # the client is made with the first call
    cloud.mischief.short_of = short_of
    begun = time.monotonic()

    await harness.backend.spawn(spec(cloud, agent_id), silent)

    assert offer_of(cloud, agent_id) == taken
    assert cloud.calls["RunInstances"] == [SPOT, ON_DEMAND, LARGER].index(taken) + 1
    assert time.monotonic() - begun < 5


@pytest.mark.scenario("S16")
async def test_no_capacity_for_any_offer_may_be_tried_again_and_leaves_nothing(
    harness: Ec2Harness, cloud: FakeEc2
) -> None:  # fmt: skip
    agent_id = fresh_agent_id()
    cloud.mischief.short_of = {SPOT, ON_DEMAND, LARGER}

    with pytest.raises(TransientSpawnError) as raised:
        await harness.backend.spawn(spec(cloud, agent_id), silent)

    assert raised.value.code is SpawnCode.CAPACITY
    assert cloud.machines == {}


async def test_a_quota_that_is_used_up_is_said_so(harness: Ec2Harness, cloud: FakeEc2) -> None:
    cloud.mischief.quota = 0

    with pytest.raises(TransientSpawnError, match="quota") as raised:
        await harness.backend.spawn(spec(cloud, fresh_agent_id()), silent)

    assert raised.value.code is SpawnCode.QUOTA


@pytest.mark.parametrize(
    ("code", "status", "ours"),
    [
        ("UnauthorizedOperation", 403, SpawnCode.AUTH_DENIED),
        ("InvalidSubnetID.NotFound", 400, SpawnCode.INVALID_SPEC),
        ("InvalidAMIID.Unavailable", 400, SpawnCode.IMAGE_NOT_FOUND),
    ],
)
async def test_what_no_other_offer_would_mend_ends_the_walk(
    harness: Ec2Harness, cloud: FakeEc2, code: str, status: int, ours: SpawnCode
) -> None:
    cloud.mischief.refuse("RunInstances", code, status=status, times=9)

    with pytest.raises(PermanentSpawnError) as raised:
        await harness.backend.spawn(spec(cloud, fresh_agent_id()), silent)

    assert raised.value.code is ours
    assert cloud.calls["RunInstances"] == 1


@pytest.mark.scenario("S01")
async def test_an_attempt_after_another_offer_was_granted_finds_that_and_takes_no_second_one(
    harness: Ec2Harness, cloud: FakeEc2
) -> None:
    agent_id = fresh_agent_id()
    cloud.mischief.short_of = {SPOT}
    first = await harness.backend.spawn(spec(cloud, agent_id, "claim-1"), silent)
    cloud.mischief.short_of = set()

    again = await (await harness.another()).spawn(spec(cloud, agent_id, "claim-2"), silent)

    assert again == first
    assert len(cloud.of(agent_id)) == 1


@pytest.mark.scenario("S01", "S02", "S03")
async def test_a_launch_whose_every_reply_is_lost_is_found_by_the_next_attempt_as_soon_as_ec2_shows_it(
    harness: Ec2Harness, cloud: FakeEc2
) -> None:
    """The next attempt has a claim of its own, so EC2 says that the parameters are others, and not which instance."""
    agent_id = fresh_agent_id()
    cloud.mischief.lost, cloud.mischief.late_s = 1.0, LATE_S
    with pytest.raises(TransientSpawnError):
        await harness.backend.spawn(spec(cloud, agent_id, "claim-1", offers=1), silent)
    cloud.mischief.lost = 0.0

    ref = await harness.backend.spawn(spec(cloud, agent_id, "claim-2", offers=1), silent)

    assert [machine.id for machine in cloud.of(agent_id)] == [ref.ref]


NOT_THERE = ("Unsupported", "The requested instance type is not supported in the zone")
DENIED = ("UnauthorizedOperation", "You are not authorized")
OTHER_MACHINE = ("Unsupported", "The architecture 'arm64' of the type does not match the architecture 'x86_64'")


@pytest.mark.scenario("S16", "S19")
@pytest.mark.parametrize(
    ("lasting", "short_of", "granted_never"),
    [
        (NOT_THERE, SPOT, None),
        (NOT_THERE, ON_DEMAND, "spot"),
        (DENIED, SPOT, None),
        (OTHER_MACHINE, SPOT, None),
    ],
    ids=["not there", "not there, and asked for first", "denied", "another architecture"],
)
async def test_what_one_offer_may_grant_later_is_tried_again_whatever_another_says(
    harness: Ec2Harness, cloud: FakeEc2, lasting: tuple[str, str], short_of: str, granted_never: str | None
) -> None:
    agent_id = fresh_agent_id()
    cloud.mischief.short_of = {short_of}
    cloud.mischief.refuse(
        "RunInstances", *lasting, times=9, fits=lambda ask: ask.get("InstanceMarketOptions.MarketType") == granted_never
    )

    with pytest.raises(TransientSpawnError, match=lasting[1]) as raised:
        await harness.backend.spawn(spec(cloud, agent_id, offers=2), silent)

    assert raised.value.code is SpawnCode.CAPACITY
    assert cloud.machines == {}


@pytest.mark.scenario("S16")
async def test_what_every_offer_refuses_for_good_is_not_tried_again(harness: Ec2Harness, cloud: FakeEc2) -> None:
    cloud.mischief.refuse("RunInstances", "Unsupported", times=9)

    with pytest.raises(PermanentSpawnError) as raised:
        await harness.backend.spawn(spec(cloud, fresh_agent_id()), silent)

    assert raised.value.code is SpawnCode.INVALID_SPEC
    assert cloud.calls["RunInstances"] == 3


@pytest.mark.scenario("S01", "S16")
@pytest.mark.parametrize("offers", [1, 2])
@pytest.mark.parametrize("again", [1, 2])
async def test_a_token_that_was_refused_is_not_taken_for_one_that_made_an_instance(
    harness: Ec2Harness, cloud: FakeEc2, offers: int, again: int
) -> None:
    """EC2 remembers what it refused as well, and the next attempt has a claim of its own: other parameters."""
    agent_id = fresh_agent_id()
    cloud.mischief.short_of = {SPOT, ON_DEMAND, LARGER}
    for attempt in range(again):
        with pytest.raises(TransientSpawnError) as raised:
            await harness.backend.spawn(
                spec(cloud, agent_id, f"claim-{attempt}", offers, asked_before=attempt > 0), silent
            )
        assert raised.value.code is SpawnCode.CAPACITY
    cloud.mischief.short_of = set()

    ref = await harness.backend.spawn(spec(cloud, agent_id, "claim-9", offers, asked_before=True), silent)

    assert [machine.id for machine in cloud.of(agent_id)] == [ref.ref]
    assert offer_of(cloud, agent_id) == SPOT


@pytest.mark.scenario("S01", "S03")
@pytest.mark.parametrize("remembers_refused", [True, False])
async def test_a_lost_grant_after_a_refusal_is_waited_for_before_the_first_offer_is_asked_for_again(
    harness: Ec2Harness, cloud: FakeEc2, remembers_refused: bool
) -> None:
    """No token tells: the first offer's was refused, and the second's is not asked for once the first is granted."""
    agent_id = fresh_agent_id()
    cloud.mischief.remembers_refused = remembers_refused
    cloud.mischief.short_of, cloud.mischief.lost, cloud.mischief.late_s = {SPOT}, 1.0, LATE_S
    with pytest.raises(TransientSpawnError):
        await harness.backend.spawn(spec(cloud, agent_id, "claim-1"), silent)
    (machine,) = cloud.of(agent_id)
    machine.shown_at = machine.tagged_at = time.monotonic() + LATE_S
    cloud.mischief.lost, cloud.mischief.short_of = 0.0, set()
    one = spec(cloud, agent_id, "claim-2", asked_before=True)
    # A look may take as long as the instance takes to show.
    patient = Ec2Backend(one.scaler, INSTALLATION, replace(QUICK, visible_after=10.0))

    again = await patient.spawn(one, silent)
    await patient.close()

    assert [machine.id for machine in cloud.of(agent_id)] == [again.ref]
    assert offer_of(cloud, agent_id) == ON_DEMAND


async def test_an_attempt_leaves_itself_time_to_ask_however_long_ec2_might_take_to_show_something(
    harness: Ec2Harness, cloud: FakeEc2
) -> None:
    agent_id = fresh_agent_id()
    one = replace(spec(cloud, agent_id, asked_before=True), time_limit=timedelta(seconds=4))
    patient = Ec2Backend(one.scaler, INSTALLATION, replace(QUICK, visible_after=600.0))

    async with asyncio.timeout(60):
        await patient.spawn(one, silent)
    await patient.close()

    assert offer_of(cloud, agent_id) == SPOT


async def test_an_instance_that_ended_before_its_spawn_was_confirmed_is_not_made_again(
    harness: Ec2Harness, cloud: FakeEc2
) -> None:
    agent_id = fresh_agent_id()
    first = await harness.backend.spawn(spec(cloud, agent_id, offers=1), silent)
    await destroy(harness.backend, agent_id)

    again = await harness.backend.spawn(spec(cloud, agent_id, offers=1), silent)

    assert again == first
    assert len(cloud.of(agent_id)) == 1


@pytest.mark.scenario("S01")
async def test_what_ec2_does_not_show_yet_may_be_tried_again_and_is_never_made_twice(
    harness: Ec2Harness, cloud: FakeEc2
) -> None:
    agent_id = fresh_agent_id()
    await harness.backend.spawn(spec(cloud, agent_id, "claim-1", offers=1), silent)
    cloud.of(agent_id)[0].tagged_at = time.monotonic() + 60

    with pytest.raises(TransientSpawnError, match="does not show it yet"):
        await harness.backend.spawn(spec(cloud, agent_id, "claim-2", offers=1), silent)

    assert len(cloud.of(agent_id)) == 1


async def test_a_scaler_that_was_moved_to_another_region_makes_nothing_there(
    harness: Ec2Harness, cloud: FakeEc2
) -> None:  # fmt: skip
    one = spec(cloud, fresh_agent_id())
    assert one.scaler.ec2 is not None
    moved = one.scaler.model_copy(update={"ec2": one.scaler.ec2.model_copy(update={"region": "us-east-1"})})

    with pytest.raises(PermanentSpawnError, match="a new name"):
        await harness.backend.spawn(replace(one, scaler=moved), silent)

    assert cloud.machines == {}


@pytest.mark.scenario("S38")
async def test_a_worker_without_credentials_says_so_and_reaches_nothing(
    cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    scaler = spec(cloud, fresh_agent_id()).scaler

    with pytest.raises(Exception, match="no AWS credentials"):
        await Ec2Backend.connect(scaler, INSTALLATION, QUICK)

    assert cloud.calls.total() == 0


WORKERS_OWN = ("HATCHWAY_SECRET_NPM_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "TEMPORAL_API_KEY")


@pytest.mark.scenario("S41")
@pytest.mark.parametrize("name", WORKERS_OWN)
async def test_what_the_worker_knows_for_a_secret_of_its_own_goes_into_no_user_data(
    cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By `KICI_AGENT_ENV_*`, which is for every agent of a worker and resolves no reference."""
    monkeypatch.setenv(name, "hunter22-hunter22")
    one = spec(cloud, fresh_agent_id())
    leaky = replace(one, env={**one.env, "NPM_CONFIG": "//registry/:_authToken=hunter22-hunter22", "PLAIN": "value"})
    backend = Ec2Backend(one.scaler, INSTALLATION, QUICK)

    with pytest.raises(PermanentSpawnError, match="NPM_CONFIG would put a secret into user data") as raised:
        await backend.spawn(leaky, silent)
    await backend.close()

    assert raised.value.code is SpawnCode.INVALID_SPEC
    assert "hunter22" not in str(raised.value)
    assert cloud.machines == {}


async def test_the_instances_own_time_limit_ends_it_when_nobody_else_does(harness: Ec2Harness, cloud: FakeEc2) -> None:
    agent_id = fresh_agent_id()
    cloud.mischief.minute_s = 0.05
    scaler = ec2_scaler(cloud.url, ec2={"userData": "exec sleep 3600", "maxInstanceSeconds": 120})
    env = {"KICI_SCALER_CLAIM_CODE": "claim-1", "KICI_AGENT_ID": agent_id}

    await harness.backend.spawn(ec2_spec(scaler, agent_id, env, INSTALLATION), silent)

    async with asyncio.timeout(30):
        while await harness.live(agent_id) or len(await harness.remains(agent_id)) > 1:  # its processes end with it
            await asyncio.sleep(0.02)
    assert await harness.remains(agent_id) in ([], [f"{cloud.of(agent_id)[0].id} shutting-down"])
    assert issubclass(TransientSpawnError, SpawnError)
