"""`hatchway config …` against a real Postgres."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hatchway.store.config_versions import ConfigVersions
from hatchway.store.pool import Database
from tests.integration.cli.conftest import Hatchway, scaler, write


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
