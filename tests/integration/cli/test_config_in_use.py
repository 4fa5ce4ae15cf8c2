"""`hatchway config …` while agents run and jobs wait, and with a Temporal server where somebody has to be told."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from hatchway.store.config_versions import ConfigVersions
from hatchway.store.pool import Database
from hatchway.store.slots import Candidate, Held, Reservation, Slots, Waiting
from hatchway.task_queues import CONTROL
from tests.integration.cli.conftest import Hatchway, scaler, write
from tests.support.namespaces import Namespaces


async def hold(db: Database, agent_id: str, scaler: str = "metal", backend: str = "bare-metal") -> Held | Waiting:
    """A slot, or a place in the line for one."""
    candidate = Candidate(
        scaler=scaler, mcpu=1000, mem_bytes=2**30, label_set=[scaler], mandatory_labels=[], backend_type=backend,
        provisioning_targets=[], roles=[],
    )  # fmt: skip
    answer = await Slots(db).reserve(
        Reservation(
            agent_id=agent_id, workflow_id=f"provision/{agent_id}", workflow_first_run_id="run", job_id=None,
            run_id=None, priority=3, wait=True, candidates=[candidate], config_version=1, owner_instance_id="w",
            reserved_for=timedelta(hours=1), wait_timeout=timedelta(hours=1),
        )
    )  # fmt: skip
    assert isinstance(answer, Held | Waiting)
    return answer


async def test_a_dry_run_counts_who_is_there(cluster: Hatchway, file: Path, db: Database) -> None:
    cluster.object("config", "apply", write(file, scaler(), scaler("other")))
    for agent in ("a1", "a2"):
        await hold(db, agent)

    lowered = cluster("config", "apply", write(file, scaler(maxAgents=1), scaler("other")), "--dry-run").stdout
    gone = cluster.object("config", "apply", write(file, scaler("other")), "--dry-run")
    pooled = write(file, scaler(machinePool="p"), scaler("other"), machinePools=[{"name": "p", "cpus": 9}])
    moved = cluster.object("config", "apply", pooled, "--dry-run")
    cluster.object("config", "apply", write(file, scaler("other")))
    back = cluster.object("config", "apply", write(file, scaler(), scaler("other")), "--dry-run")

    assert (
        "cap scaler:metal agents: 4 -> 1 (2 in use: nobody is stopped, and nobody is let in until it is under the cap)"
        in lowered
    )
    assert (gone["retires"], moved["moves"], back["returns"]) == ({"metal": 2}, {"metal": 2}, {"metal": 2})


async def test_a_scaler_changes_its_type_only_while_nothing_of_the_old_one_is_there(
    cluster: Hatchway, file: Path, db: Database
) -> None:
    other = scaler(
        type="container", networkIsolation=False, labelSets=[{"labels": ["metal"], "image": "registry.test/ci:1"}]
    )
    cluster.object("config", "apply", write(file, scaler(maxAgents=1)))
    await hold(db, "a1")
    await hold(db, "b1")
    wanted = write(file, other)

    refused = [cluster("config", "apply", wanted, *dry) for dry in ([], ["--dry-run"])]
    await Slots(db).release("b1", "cancelled", None)
    await Slots(db).release("a1", "cancelled", None)
    done = cluster.object("config", "apply", wanted)

    assert [r.returncode for r in refused] == [1, 1]
    for said in refused:
        assert (
            "scaler metal cannot change from bare-metal to container while it has 1 agent and 1 waiting job: "
            "give the new one another name" in said.stderr
        )
    assert done["version"] == 2


async def test_a_scaler_that_was_gone_comes_back_as_another_type_only_once_its_agents_have_ended(
    cluster: Hatchway, file: Path, db: Database
) -> None:
    as_container = scaler(
        type="container", networkIsolation=False, labelSets=[{"labels": ["metal"], "image": "registry.test/ci:1"}]
    )
    cluster.object("config", "apply", write(file, scaler()))
    await hold(db, "a1")
    cluster.object("config", "apply", write(file, scaler("other")))

    refused = cluster("config", "apply", write(file, scaler("other"), as_container))
    as_before = cluster.object("config", "apply", write(file, scaler("other"), scaler()), "--dry-run")
    await Slots(db).release("a1", "completed", None)
    done = cluster.object("config", "apply", write(file, scaler("other"), as_container))

    assert "while it has 1 agent:" in refused.stderr
    assert as_before["returns"] == {"metal": 1}
    assert done["version"] == 3


async def test_agents_count_in_the_pool_that_they_were_reserved_in_also_after_their_scaler_has_moved(
    cluster: Hatchway, file: Path, db: Database
) -> None:
    pools = [{"name": "one", "maxAgents": 1}, {"name": "two", "maxAgents": 1}]
    cluster.object("config", "apply", write(file, scaler(machinePool="one"), scaler("s"), machinePools=pools))
    await hold(db, "a1")

    cluster.object(
        "config", "apply", write(file, scaler(machinePool="two"), scaler("s", machinePool="one"), machinePools=pools)
    )

    use = await ConfigVersions(db).use()
    assert (use["pool:one"].agents, use["pool:two"].agents) == (1, 0)
    waits, fits = await hold(db, "b1", "s"), await hold(db, "b2", "metal")
    assert isinstance(waits, Waiting)
    assert isinstance(fits, Held)
    await Slots(db).release("a1", "completed", None)
    assert {row.agent_id for row in await Slots(db).list()} == {"b1", "b2"}


async def test_a_full_pools_cap_is_edited_and_hurts_nobody(cluster: Hatchway, file: Path, db: Database) -> None:
    def pools(agents: int) -> str:
        return write(file, scaler(machinePool="p"), machinePools=[{"name": "p", "maxAgents": agents}])

    cluster.object("config", "apply", pools(2))
    for agent in ("a1", "a2"):
        await hold(db, agent)

    lowered = cluster.object("config", "apply", pools(1))
    waiting = await hold(db, "b1")
    await Slots(db).release("a1", "completed", None)
    after_one = {row.agent_id for row in await Slots(db).list()}
    await Slots(db).release("a2", "completed", None)

    assert lowered["caps"] == [{"scope": "pool:p", "what": "agents", "before": 2, "after": 1, "used": 2}]
    assert isinstance(waiting, Waiting)
    assert "pool:p is full" in waiting.bound[0]
    assert after_one == {"a2"}
    assert {row.agent_id for row in await Slots(db).list()} == {"b1"}


async def waiting_workflows(temporal: Client, *agent_ids: str) -> None:
    """Workflows under the ids of these agents' provisions. No worker runs them: a signal is an event of theirs."""
    for agent_id in agent_ids:
        await temporal.start_workflow("ProvisionWorkflow", id=f"provision/{agent_id}", task_queue=CONTROL)


async def signals(temporal: Client, agent_id: str) -> list[str]:
    history = await temporal.get_workflow_handle(f"provision/{agent_id}").fetch_history()
    return [
        event.workflow_execution_signaled_event_attributes.signal_name
        for event in history.events
        if event.HasField("workflow_execution_signaled_event_attributes")
    ]


@pytest.fixture
async def client(namespaces: Namespaces) -> Client:
    return await namespaces.take()


def beside(cluster: Hatchway, temporal: Client) -> Hatchway:
    return Hatchway(
        {
            **cluster.environment,
            "TEMPORAL_ADDRESS": temporal.service_client.config.target_host,
            "TEMPORAL_NAMESPACE": temporal.namespace,
        }
    )


async def test_whoever_gets_room_by_an_apply_is_signalled_and_who_is_gone_gives_it_to_the_next(
    cluster: Hatchway, file: Path, db: Database, client: Client
) -> None:
    cluster.object("config", "apply", write(file, scaler(maxAgents=1)))
    for agent in ("a1", "gone", "b2", "b3"):
        await hold(db, agent)
    await waiting_workflows(client, "b2", "b3")

    done = beside(cluster, client).object("config", "apply", write(file, scaler(maxAgents=3)))

    assert "warning" not in done
    # Once for the new version, perhaps once more for the room: "look again" costs nothing but an event.
    assert [set(await signals(client, agent)) for agent in ("b2", "b3")] == [{"granted"}, {"granted"}]
    assert {row.agent_id for row in await Slots(db).list()} == {"a1", "b2", "b3"}


async def test_more_than_one_answer_can_name_are_all_signalled(
    cluster: Hatchway, file: Path, db: Database, client: Client
) -> None:
    cluster.object("config", "apply", write(file, scaler(maxAgents=1)))
    agents = [f"b{n}" for n in range(120)]
    for agent in ("a1", *agents):
        await hold(db, agent)
    await waiting_workflows(client, *agents)

    beside(cluster, client).object("config", "apply", write(file, scaler(maxAgents=200)))

    told = [await signals(client, agent) for agent in agents]
    assert told == [["granted"]] * len(agents)


async def test_an_apply_amid_two_hundred_requests_is_applied_and_no_cap_is_passed(
    cluster: Hatchway, file: Path, db: Database
) -> None:
    cluster.object("config", "apply", write(file, scaler(maxAgents=60)))
    asked = [asyncio.create_task(hold(db, f"a{n}")) for n in range(200)]
    lowered = write(file, scaler(maxAgents=20))

    done = await asyncio.to_thread(cluster, "config", "apply", lowered)
    answers = await asyncio.gather(*asked)

    assert done.returncode == 0, done.stderr
    held = sum(isinstance(answer, Held) for answer in answers)
    use = await ConfigVersions(db).use()
    assert held == use["scaler:metal"].agents == use["global"].agents <= 60
    for n in range(200):
        await Slots(db).release(f"a{n}", "cancelled", None)
        assert (await ConfigVersions(db).use())["scaler:metal"].agents <= max(held, 20)
    assert (await ConfigVersions(db).use())["scaler:metal"].agents == 0


async def test_a_rollback_signals_too(cluster: Hatchway, file: Path, db: Database, client: Client) -> None:
    cluster.object("config", "apply", write(file, scaler(maxAgents=2)))
    cluster.object("config", "apply", write(file, scaler(maxAgents=1)))
    for agent in ("a1", "b1"):
        await hold(db, agent)
    await waiting_workflows(client, "b1")

    beside(cluster, client).object("config", "rollback", "1")

    assert await signals(client, "b1") == ["granted"]


async def test_an_apply_stands_while_temporal_is_away_and_says_who_tells_the_waiters(
    cluster: Hatchway, file: Path, db: Database
) -> None:
    cluster.object("config", "apply", write(file, scaler(maxAgents=1)))
    for agent in ("a1", "b1"):
        await hold(db, agent)

    done = cluster("config", "apply", write(file, scaler(maxAgents=2)))

    assert done.returncode == 0
    assert "version 2 is in force" in done.stdout
    assert "the next sweep tells them" in done.stdout
    assert {row.agent_id for row in await Slots(db).list()} == {"a1", "b1"}
