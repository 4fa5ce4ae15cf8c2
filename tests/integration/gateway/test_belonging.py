"""A gateway on the database of another namespace ends no agent: it does not start, or says that one may ask again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from hatchway.gateway import belonging
from hatchway.gateway.server import serve
from hatchway.gateway.settings import GatewaySettings
from hatchway.namespace import namespace_uuid
from hatchway.store.installation import retie_namespace, tie_namespace
from hatchway.store.pool import Database
from hatchway.tie import TiedElsewhere
from tests.support.door import Door, OpenDoor, redeemed, refusal, registered
from tests.support.lab import Lab
from tests.support.namespaces import Namespaces, until

UNKNOWN = "x" * 43
"""It looks like a token, and no database knows it: that of an agent of another installation."""
CODE = "y" * 32


@pytest.fixture
async def own(lab: Lab, open_door: OpenDoor) -> AsyncIterator[str]:
    """The id of the lab's namespace, to which its database is tied again after the test."""
    own = await namespace_uuid(lab.temporal)
    await retie_namespace(lab.db, own)
    yield own
    await retie_namespace(lab.db, own)


@pytest.fixture
async def other(namespaces: Namespaces) -> Client:
    return await namespaces.take()


async def _ends(door: Door, token: str) -> list[tuple[int, str]]:
    """What an agent hears whose token is not known, and one whose claim is not."""
    calls = [door.register(token), door.heartbeat(token), door.complete(token), door.redeem(CODE)]
    return [refusal(await call) for call in calls]


async def test_a_gateway_does_not_start_on_the_database_of_another_namespace(
    own: str, other: Client, module_database_url: str
) -> None:
    with pytest.raises(TiedElsewhere, match=r"another Temporal namespace than .*: nothing is done here") as refused:
        await serve(GatewaySettings(bind="127.0.0.1:0", metrics_bind=None), module_database_url, other)

    assert "hatchway setup --retie" in str(refused.value)


async def test_a_database_that_is_not_tied_yet_sends_no_agent_away(
    lab: Lab, own: str, open_door: OpenDoor, database_url: str
) -> None:
    door = await open_door(database_url)

    answers = await _ends(door, UNKNOWN)
    async with Database.open(database_url, max_size=1) as db:
        await tie_namespace(db, own)
    tied = await _ends(door, UNKNOWN)

    assert answers == [(503, "unavailable")] * 4
    assert tied == [(401, "unauthorized")] * 3 + [(403, "claim_refused")]


async def test_a_database_that_comes_to_belong_elsewhere_ends_no_agent(
    lab: Lab, own: str, other: Client, open_door: OpenDoor
) -> None:
    """Before the gateway has looked again by itself."""
    door = await open_door(instance_heartbeat=3600)
    await retie_namespace(lab.db, await namespace_uuid(other))

    assert await _ends(door, UNKNOWN) == [(503, "unavailable")] * 4


async def test_a_gateway_finds_out_by_itself_and_takes_nothing_in_until_it_is_over(
    lab: Lab, own: str, other: Client, open_door: OpenDoor
) -> None:
    door = await open_door(instance_heartbeat=0.05, instance_id="astray")
    busy = await registered(lab, door)

    await retie_namespace(lab.db, await namespace_uuid(other))
    await until(lambda: _is_ready(door, 503), what="not ready")
    heard = await door.heartbeat(busy.token)
    before = await _last_seen(lab, "astray")
    ready = await door.http.get(f"{door.url}/readyz")
    after = await _last_seen(lab, "astray")
    await retie_namespace(lab.db, own)
    await until(lambda: _is_ready(door, 200), what="ready again")

    assert refusal(heard) == (503, "unavailable")
    assert "another Temporal namespace" in ready.json()["message"]
    assert before == after
    assert (await door.heartbeat(busy.token)).status_code == 200
    await until(lambda: _is_seen_after(lab, "astray", after), what="a heartbeat of the gateway's own")
    await lab.release(busy.started, now=True)


async def test_a_gateway_that_speaks_to_another_namespace_turns_no_new_agent_away(
    lab: Lab, own: str, other: Client, open_door: OpenDoor
) -> None:
    await retie_namespace(lab.db, await namespace_uuid(other))
    astray = await open_door(temporal=other, instance_heartbeat=3600)
    await retie_namespace(lab.db, own)
    door = await open_door()
    agent = await redeemed(lab, door)

    answer = await astray.register(agent.token)

    assert refusal(answer) == (503, "unavailable")
    assert (await door.register(agent.token)).status_code == 200
    await lab.release(agent.started, now=True)


async def test_what_only_temporal_does_not_know_has_ended_where_the_namespace_is_still_the_same(
    lab: Lab, own: str, open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another namespace may bear the name by now: a new server, or one that was restored."""

    async def renewed(_temporal: Client) -> str:
        return "another"

    door = await open_door(instance_heartbeat=3600)
    agent = await redeemed(lab, door)
    await lab.handle(agent.started).terminate()
    monkeypatch.setattr(belonging, "namespace_uuid", renewed)

    assert refusal(await door.register(agent.token)) == (503, "unavailable")


async def _is_ready(door: Door, status: int) -> bool:
    return (await door.http.get(f"{door.url}/readyz")).status_code == status


async def _last_seen(lab: Lab, instance: str) -> object:
    return await lab.db.fetch_value("select last_seen_at from scaler_instances where instance_id = %s", [instance])


async def _is_seen_after(lab: Lab, instance: str, before: object) -> bool:
    return await _last_seen(lab, instance) != before
