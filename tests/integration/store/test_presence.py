"""Heartbeats: what agents hear, and how instances stay alive."""

from __future__ import annotations

from datetime import datetime, timedelta

from hatchway.store.adoption import Adoption
from hatchway.store.pool import Database
from hatchway.store.presence import Beat, Presence
from hatchway.store.slots import Slots
from tests.integration.store.factory import adopted, held


async def test_a_batch_of_heartbeats_hears_an_answer_for_each(db: Database) -> None:
    await adopted(db, "a1", "job-1")
    await adopted(db, "a2")
    await held(db, "a3")
    await Slots(db).request_drain("a1")
    await Adoption(db).close("a2", "idle", only_unadopted=False)

    answers = await Presence(db).beat(
        "gateway-2", [("a1", "reg-1"), ("a2", "reg-1"), ("a3", "reg-1"), ("nobody", "reg-1"), ("a1", "reg-1")]
    )

    assert {agent: a.answer for agent, a in answers.items()} == {
        "a1": Beat.OK,
        "a2": Beat.STOP,
        "a3": Beat.OTHER_REGISTRATION,
        "nobody": Beat.UNKNOWN,
    }
    assert (answers["a1"].drain, answers["a1"].job_id, answers["a1"].run_id) == (True, "job-1", "run-of-job-1")
    assert answers["a2"].end_reason == "idle"
    assert await Presence(db).beat("gateway-2", []) == {}


async def test_only_the_adopted_registration_keeps_its_agent_alive(db: Database) -> None:
    await adopted(db, "a1")
    await adopted(db, "a2")
    await db.fetch_all("update scaler_agent_presence set last_seen_at = now() - interval '1 hour'")

    answers = await Presence(db).beat("gateway-2", [("a1", "reg-1"), ("a2", "another")])

    assert answers["a2"].answer is Beat.OTHER_REGISTRATION
    assert await db.fetch_all(
        "select agent_id, instance_id, last_seen_at > now() - interval '1 min' from scaler_agent_presence order by 1"
    ) == [("a1", "gateway-2", True), ("a2", "gateway-1", False)]


async def test_a_heartbeat_after_the_release_leaves_no_presence_behind(db: Database) -> None:
    await adopted(db, "a1")
    await Slots(db).release("a1", "idle")

    await Presence(db).beat("gateway-1", [("a1", "reg-1")])

    assert await db.fetch_value("select count(*) from scaler_agent_presence") == 0


async def test_an_instance_counts_as_newly_alive_after_a_gap_only(db: Database) -> None:
    presence = Presence(db)

    async def times() -> tuple[datetime, datetime]:
        row = await db.fetch_one("select alive_since, last_seen_at from scaler_instances")
        assert row is not None
        return row[0], row[1]

    async def alive_since_moved(silence: str) -> tuple[bool, timedelta]:
        """And how long it had been silent by its beat: a moment longer than it was set back here."""
        await presence.instance_beat("g", "gateway", "1", ["host-1"], "boot-1")
        await db.fetch_all(
            "update scaler_instances set last_seen_at = now() - %(silence)s::interval", {"silence": silence}
        )
        alive_before, seen_before = await times()
        await presence.instance_beat("g", "gateway", "1", ["host-1"], "boot-1")
        alive_after, seen_after = await times()
        return alive_after > alive_before, seen_after - seen_before

    for silence in ("44 s", "46 s"):
        moved, silent = await alive_since_moved(silence)
        assert moved == (silent > timedelta(seconds=45)), silence


async def test_a_second_machine_with_the_same_host_id_is_found_by_its_boot_id(db: Database) -> None:
    presence = Presence(db)
    await presence.instance_beat("w1", "worker", "1", ["host-1", "host-2"], "boot-1")
    await presence.instance_beat("w2", "worker", "1", ["host-3"], "boot-2")
    await presence.instance_beat("w3", "worker", "1", ["host-1"], "boot-3")
    await db.fetch_all("update scaler_instances set last_seen_at = now() - interval '46 s' where instance_id = 'w3'")

    assert [(i.instance_id, i.boot_id) for i in await presence.live_instances_with_host("host-1")] == [("w1", "boot-1")]
