"""The inputs of schedules are kept for ever, so they move on to the key that encrypts now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, ScheduleActionStartWorkflow

from hatchway.codec import key_id_of
from hatchway.schedules import PURGE, SWEEP, Made, make_reclaim_schedule, make_schedules, reclaim_of
from tests.integration.codec.rig import Keyed


@pytest.fixture
async def plain(keyed: Keyed) -> AsyncIterator[Client]:
    """A client without keys; the schedules do not outlive the test."""
    client = await keyed.client(None)
    yield client
    async for schedule in await client.list_schedules():
        await client.get_schedule_handle(schedule.id).delete()


async def key_of(client: Client, schedule: str) -> str:
    """The id of the key that encrypted a schedule's input; empty: none did."""
    action = (await client.get_schedule_handle(schedule).describe()).schedule.action
    assert isinstance(action, ScheduleActionStartWorkflow)
    (argument,) = action.args
    assert isinstance(argument, Payload)
    return key_id_of(argument)


async def made(client: Client) -> set[Made]:
    return {*(await make_schedules(client)).values(), await make_reclaim_schedule(client, "host-1")}


async def test_schedules_are_encrypted_anew_when_the_key_changes_and_else_left_alone(
    keyed: Keyed, plain: Client
) -> None:
    def keys(*names: str) -> Path:
        return keyed.write("-".join(names), *names)

    steps = {
        "": plain,
        "old": await keyed.client(keys("old")),
        "new": await keyed.client(keys("new", "old")),
        " off": await keyed.client(keys("none", "new")),
    }
    for number, (key, client) in enumerate(steps.items()):
        assert await made(client) == {Made.UPDATED if number else Made.CREATED}
        assert await made(client) == {Made.UNCHANGED}
        found = {await key_of(plain, one) for one in (SWEEP.id, PURGE.id, reclaim_of("host-1").id)}
        assert found == {key if key != " off" else ""}
