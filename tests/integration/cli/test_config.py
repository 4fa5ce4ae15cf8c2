"""`hatchway config …` against a real Postgres, and a Temporal server where somebody has to be told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from hatchway.store.config_versions import ConfigVersions
from hatchway.store.pool import Database
from hatchway.store.slots import Candidate, Held, Reservation, Slots, Waiting
from hatchway.task_queues import CONTROL
from tests.integration.cli.conftest import Hatchway
from tests.support.namespaces import Namespaces

NOBODY = "127.0.0.1:1"
"""Where no Temporal listens: a command that needs none must not ask for one."""


def scaler(name: str = "metal", **keys: Any) -> dict[str, Any]:
    return {"name": name, "type": "bare-metal", "maxAgents": 4, "labelSets": [{"labels": [name]}], **keys}


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    async with Database.open(database_url) as opened:
        yield opened


@pytest.fixture
def cluster(database_url: str) -> Hatchway:
    """The command line of a cluster whose database is fresh."""
    return Hatchway({"DATABASE_URL": database_url, "TEMPORAL_ADDRESS": NOBODY})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hatchway.yaml"


def write(file: Path, *scalers: dict[str, Any], **keys: Any) -> str:
    file.write_text(json.dumps({"version": 1, "scalers": list(scalers) or [scaler()], **keys}))
    return str(file)


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


def test_a_file_is_applied_shown_and_stands_in_the_history(cluster: Hatchway, file: Path) -> None:
    applied = cluster.object("config", "apply", write(file), "--note", "first", "--by", "ann")

    shown = cluster.object("config", "show")
    history = cluster("config", "history", "--json").stdout.splitlines()
    assert (applied["version"], applied["base"], applied["changed"]) == (1, 0, True)
    assert shown["content"]["scalers"][0]["name"] == "metal"
    [entry] = map(json.loads, history)
    assert (entry["version"], entry["source"], entry["applied_by"], entry["note"]) == (1, str(file), "ann", "first")
    assert "content" not in entry


def test_an_apply_says_what_changes_and_a_dry_run_says_the_same_and_changes_nothing(
    cluster: Hatchway, file: Path
) -> None:
    cluster.object("config", "apply", write(file, scaler(), scaler("old"), scaler("other")))
    wanted = write(
        file,
        scaler(maxAgents=2, machinePool="rack"),
        scaler("other"),
        scaler("new"),
        globalResourceCap={"cpus": 3},
        machinePools=[{"name": "rack", "memory": "1g"}],
    )

    dry = cluster("config", "apply", wanted, "--dry-run")
    wet = cluster("config", "apply", wanted)

    changes = [
        "~ scalers[metal].maxAgents: 4 -> 2",
        "+ scalers[metal].machinePool: rack",
        "- scalers[old]",
        "+ scalers[new]",
        "+ machinePools[rack]",
        "+ globalResourceCap",
        "cap global CPUs: no cap -> 3 (0 in use)",
        "cap pool:rack memory: no cap -> 1Gi (0 in use)",
        "cap scaler:metal agents: 4 -> 2 (0 in use)",
        "cap scaler:new agents: no cap -> 4 (0 in use)",
        "scaler old retires: no new work, idle warm agents go, busy ones finish (0 agents now)",
    ]
    assert set(dry.stdout.splitlines()) == {*changes, "dry run: version 1 stays in force"}
    assert set(wet.stdout.splitlines()) == {*changes, "version 2 is in force"}


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


def test_a_file_that_says_the_same_makes_no_version(cluster: Hatchway, file: Path) -> None:
    cluster.object("config", "apply", write(file))

    spelled_out = cluster("config", "apply", write(file, scaler(maxConcurrentSpawns=8)))
    rolled_back = cluster("config", "rollback", "1")

    assert spelled_out.stdout == "version 1 is in force and says the same: nothing to apply\n"
    assert rolled_back.stdout == spelled_out.stdout
    assert len(cluster("config", "history", "--json").stdout.splitlines()) == 1


@pytest.mark.parametrize("command", [["apply", "{file}"], ["apply", "{file}", "--dry-run"], ["rollback", "1"]])
def test_another_version_than_the_expected_one_changes_nothing(
    cluster: Hatchway, file: Path, command: list[str]
) -> None:
    cluster.object("config", "apply", write(file))
    cluster.object("config", "apply", write(file, scaler(maxAgents=5)), "--expect-version", "1")
    write(file, scaler(maxAgents=6))

    done = cluster("config", *(word.format(file=file) for word in command), "--expect-version", "1", "--json")

    assert done.returncode == 1
    assert json.loads(done.stderr)["error"] == "config_version_conflict"
    assert "at version 2, not 1" in json.loads(done.stderr)["message"]
    assert cluster.object("config", "show")["version"] == 2


def test_a_file_with_faults_is_refused_whole(cluster: Hatchway, file: Path) -> None:
    cluster.object("config", "apply", write(file))

    done = cluster("config", "apply", write(file, scaler(maxAgents=9), scaler(maxAgent=1)))

    assert done.returncode == 2
    assert "unknown key; did you mean maxAgents?" in done.stderr
    assert cluster.object("config", "show")["content"]["scalers"][0]["maxAgents"] == 4


def test_of_two_applies_at_once_one_wins_and_the_other_is_told_or_came_after(cluster: Hatchway, tmp_path: Path) -> None:
    first = cluster.object("config", "apply", write(tmp_path / "base.yaml"))
    files = [write(tmp_path / f"{n}.yaml", scaler(maxAgents=n)) for n in (11, 12, 13, 14)]

    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda f: cluster("config", "apply", f, "--expect-version", str(first["version"])), files))

    assert sorted(d.returncode for d in done) == [0, 1, 1, 1]
    [winner] = [f for f, d in zip(files, done, strict=True) if d.returncode == 0]
    shown = cluster.object("config", "show")
    assert (shown["version"], shown["source"]) == (2, winner)


def test_a_rollback_is_a_new_version_that_says_what_the_old_one_said(cluster: Hatchway, file: Path) -> None:
    for agents in (4, 5, 6):
        cluster.object("config", "apply", write(file, scaler(maxAgents=agents)))

    dry = cluster("config", "rollback", "2", "--dry-run")
    done = cluster.object("config", "rollback", "2")

    assert "~ scalers[metal].maxAgents: 6 -> 5" in dry.stdout
    assert done["version"] == 4
    now = cluster.object("config", "show")
    assert (now["content"], now["source"]) == (
        cluster.object("config", "show", "--version", "2")["content"],
        "rollback to version 2",
    )


def test_a_rollback_brings_back_a_scaler_that_was_gone(cluster: Hatchway, file: Path) -> None:
    cluster.object("config", "apply", write(file, scaler(), scaler("old")))
    cluster.object("config", "apply", write(file, scaler()))

    done = cluster.object("config", "rollback", "1")

    assert done["returns"] == {"old": 0}
    assert [s["name"] for s in cluster.object("config", "show")["content"]["scalers"]] == ["metal", "old"]


@pytest.mark.parametrize("command", [["rollback", "7"], ["show", "--version", "7"]])
def test_a_version_that_never_was_is_said_to_be_none(cluster: Hatchway, file: Path, command: list[str]) -> None:
    cluster.object("config", "apply", write(file))

    done = cluster("config", *command)

    assert done.returncode == 1
    assert "there is no configuration version 7; the newest is 1" in done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"version": 1, "scalers": [scaler()], "quantum": {}}, "quantum: unknown key"),
        ({"version": 1, "scalers": [scaler(), scaler()]}, "scalers[1].name: is the name of an earlier scaler too"),
    ],
)
async def test_a_rollback_to_what_this_release_refuses_says_why(
    cluster: Hatchway, file: Path, db: Database, content: dict[str, Any], said: str
) -> None:
    await ConfigVersions(db).apply(
        content, source="another release", by="x", note=None, expected_version=None, capacities=[]
    )
    over = cluster.object("config", "apply", write(file))

    done = cluster("config", "rollback", "1")

    assert over["version"] == 2
    assert done.returncode == 2
    assert "release" in done.stderr
    assert said in done.stderr
    assert cluster.object("config", "show")["version"] == 2


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
    assert [await signals(client, agent) for agent in ("b2", "b3")] == [["granted"], ["granted"]]
    assert {row.agent_id for row in await Slots(db).list()} == {"a1", "b2", "b3"}


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


@pytest.mark.parametrize("command", [["show"], ["history"], ["rollback", "1"]])
def test_a_cluster_without_a_configuration_says_how_it_gets_one(cluster: Hatchway, command: list[str]) -> None:
    done = cluster("config", *command)

    assert "yet" in done.stdout + done.stderr
    assert done.returncode == (0 if command == ["history"] else 1)


@pytest.mark.parametrize("command", [["apply", "{file}"], ["rollback", "1"], ["history"]])
def test_a_database_that_is_away_exits_4(cluster: Hatchway, file: Path, command: list[str]) -> None:
    write(file)

    done = cluster(
        "config", *(word.format(file=file) for word in command), DATABASE_URL="postgresql://u:hunter2@127.0.0.1:1/db"
    )

    assert done.returncode == 4
    assert "hunter2" not in done.stderr
