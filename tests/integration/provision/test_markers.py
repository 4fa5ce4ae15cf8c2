"""No secret anywhere: provisions of every kind on real processes, and then everything they wrote down is searched.

The secrets: registry credentials, values in the environment of the job and of the label set, claim codes and nonces,
agent tokens, the database's password, and what a stranger tries at the gateway. A control that is no secret is put into
labels, ids and names: it must be found in each place, or the search would be blind there.

An agent's own output counts as a place like any other: its job prints every secret that it was given, and the host
masks them before anything is written.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict
from temporalio.common import WorkflowIDReusePolicy

from hatchway.client import ProvisionFailed, Started
from hatchway.dev.ports import free_port
from hatchway.errors import ErrorType
from hatchway.model import EndReason, JobResult, ProvisionState
from tests.support.corpus import Corpus
from tests.support.markers import Overheard, hits, marker, pieces_of
from tests.support.namespaces import until
from tests.support.processes import Processes, running_processes
from tests.support.proxy import FaultProxy

S = ProvisionState
REGISTRY = "registry.example.test:5000"
PRINT_ALL = """\
for value in "$JOB_VALUE" "$LABEL_VALUE" "$KICI_SCALER_CLAIM_CODE"; do
  printf '%s\\n' "$value"
  printf '%s' "$value" | base64 -w 0; echo
  printf 'user:%s' "$value" | base64 -w 0; echo
  printf '%s' "$value" | od -An -v -tx1 | tr -d ' \\n'; echo
done
"""
"""What a careless job does, and what an agent does that fails before it registers."""


@dataclass
class Planted:
    """The secrets that go in by configuration, and the control that is no secret."""

    control: str = field(default_factory=lambda: f"control-{secrets.token_hex(8)}")
    password: str = field(default_factory=lambda: marker("password"))
    username: str = field(default_factory=lambda: f"user-{secrets.token_hex(12)}")
    other_password: str = field(default_factory=lambda: marker("other"))
    job_value: str = field(default_factory=lambda: marker("job"))
    label_value: str = field(default_factory=lambda: marker("label"))
    guess: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """What a stranger sends to the gateway: as good as a secret, for a mistyped one differs by a letter."""

    def secrets(self) -> dict[str, str]:
        names = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "control"}
        return {f"the {name.replace('_', ' ')}": value for name, value in names.items()}


@dataclass
class Scene:
    processes: Processes
    planted: Planted
    overheard: Overheard
    drop: Path
    """Where agents leave word for the test, and find its word."""
    corpus: Corpus = field(default_factory=Corpus)

    async def provision(self, label: str, name: str, **request: Any) -> Started:
        control = self.planted.control
        container = {"image": f"{REGISTRY}/team/app:1", "env": {"JOB_VALUE": {"secret": "ci:job-value"}}}
        request.setdefault("container", container)
        return await self.processes.provision(
            labels=[label, control], job_id=f"{name}-{control}", run_id=f"run-{control}", **request
        )

    async def end(self, started: Started) -> str:
        """`succeeded`, `failed`, or the type of the failure."""
        try:
            return (await asyncio.wait_for(self.processes.hatchway.outcome(started), 90)).result.value
        except ProvisionFailed as e:
            return e.error_type

    async def word(self, name: str) -> None:
        await until((self.drop / name).exists, what=f"an agent's word {name}")

    def claims_never_redeemed(self) -> dict[str, str]:
        return {f"claim code in {path.name}": path.read_text() for path in self.drop.glob("claim-*")}


@pytest.fixture
def planted() -> Planted:
    return Planted()


@pytest.fixture
def directory(planted: Planted) -> Iterator[Path]:
    """Passable for the users that Postgres and the agents run as. The control is in its name: errors quote paths."""
    path = Path(tempfile.mkdtemp(prefix=f"hatchway-{planted.control}-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


def _config(planted: Planted, directory: Path, gateway: str) -> dict[str, Any]:
    drop, control = directory / "drop", planted.control
    user = {"user": "nobody"} if os.geteuid() == 0 else {}

    def kind(label: str, *script: str, **keys: Any) -> dict[str, Any]:
        env: dict[str, Any] = {"LABEL_VALUE": {"secret": "ci:label-value"}, "DROP": str(drop)}
        if script:
            env["HATCHWAY_AGENT_COMMAND"] = json.dumps(["/bin/sh", "-c", "\n".join(script)])
        return {"labels": [label, control], "env": env, **user, **keys}

    wait = 'touch "$DROP/printed"; until [ -e "$DROP/go" ]; do sleep 0.05; done'
    keep = 'printf %s "$KICI_SCALER_CLAIM_CODE" > "$DROP/claim-$KICI_AGENT_ID"'
    return {
        "version": 1,
        "secrets": {
            "contexts": {
                "vault": {"type": "file", "path": str(directory / "secrets"), "registries": [REGISTRY]},
                "elsewhere": {"type": "env", "registries": ["other.example.test"], "names": ["other-*"]},
                "ci": {"type": "env", "names": ["job-*", "label-*"]},
            }
        },
        "scalers": [
            {
                "name": f"laptop-{control}",
                "type": "bare-metal",
                "maxAgents": 20,
                "maxConcurrentSpawns": 4,
                "stopGraceSeconds": 1,
                "orchestratorUrl": gateway,
                "labelSets": [
                    kind("works", PRINT_ALL, f"echo {control}", wait),
                    kind("fails", PRINT_ALL, "exit 3"),
                    kind("dies", PRINT_ALL, "kill -9 $PPID; sleep 60"),
                    kind("serves"),
                    kind("crashes", command=["/bin/sh", "-c", f"{keep}\n{PRINT_ALL}\necho {control}; exit 1"]),
                    kind("silent", command=["/bin/sh", "-c", f"{keep}\n{PRINT_ALL}\nexec sleep 600"]),
                    kind("missing", command=[f"/no/such/{control}"]),
                ],
            }
        ],
    }


@pytest.fixture
async def scene(planted: Planted, directory: Path) -> AsyncIterator[Scene]:
    overheard, port = Overheard(), free_port()
    (directory / "drop").mkdir()
    (directory / "drop").chmod(0o1777)
    (directory / "secrets").mkdir(mode=0o700)
    (directory / "secrets" / "token").write_text(planted.password)
    (directory / "secrets" / "user").write_text(planted.username)
    with FaultProxy(("127.0.0.1", port), tap=overheard.chunks.append) as between:
        async with running_processes(
            directory,
            _config(planted, directory, f"http://{between.address}"),
            namespace=f"n-{planted.control}",
            instance_id=f"gateway-{planted.control}",
            gateway_port=port,
            worker_env={
                "HATCHWAY_SECRET_JOB_VALUE": planted.job_value,
                "HATCHWAY_SECRET_LABEL_VALUE": planted.label_value,
                "HATCHWAY_SECRET_OTHER_TOKEN": planted.other_password,
            },
        ) as processes:
            yield Scene(processes, planted, overheard, directory / "drop")


@pytest.mark.scenario("S41")
async def test_no_secret_is_written_down_anywhere(scene: Scene) -> None:
    stuck = asyncio.create_task(_handed_over(scene))
    await _work_and_be_read(scene)
    await _fail_in_every_way(scene)
    await _be_called_off(scene)
    await _meet_strangers(scene)
    await _lose_the_database(scene)
    await stuck
    await scene.processes.nothing_left()

    await scene.corpus.take_all(scene.processes)
    places = scene.corpus.places
    control = {"the control": scene.planted.control}
    blind = [place.name for place in places.values() if place.name not in CANNOT_HOLD and not hits([place], control)]
    assert not blind, f"the search does not see what is there: {blind}"
    assert set(places) >= EXPECTED
    wanted = _all_secrets(scene)
    assert {name.rstrip(" 0123456789") for name in wanted} >= {"claim code", "nonce", "token"}
    assert hits(places.values(), wanted) == []


EXPECTED = {
    *(f"history: {kind}" for kind in ("inputs", "results", "failures", "summaries", "memos", "search attributes")),
    *(f"description: {kind}" for kind in ("summaries", "memos", "search attributes", "failures")),
    *(f"visibility: {kind}" for kind in ("memos", "search attributes")),
    "current details", "agents' output", "state directory", "worker log", "gateway log", "worker metrics",
    "gateway metrics", "Postgres dump", "Postgres files", "Temporal's database, raw", "Temporal's database, rows",
}  # fmt: skip

CANNOT_HOLD = {"Temporal server log", "Postgres log", "description: inputs", "description: heartbeats"}
"""Places that are searched for secrets as well, and that the control has no way into."""


async def _work_and_be_read(scene: Scene) -> None:
    """A job that prints its secrets, read while it runs; and one that fails."""
    auth = {"usernameSecret": "vault:user", "tokenSecret": "vault:token"}
    container = {
        "image": f"{REGISTRY}/team/app:1", "auth": auth, "env": {"JOB_VALUE": {"secret": "ci:job-value"}},
    }  # fmt: skip
    works = await scene.provision("works", "works", container=container)
    await scene.word("printed")
    # What the job printed has gone through a pipe: the line that comes last in it is waited for.
    log = scene.processes.state_dir / works.agent_id / "log"
    await until(lambda: scene.planted.control.encode() in log.read_bytes(), what="the job's output")
    assert b"[redacted]" in log.read_bytes()
    scene.corpus.add("agents' output", works.agent_id, log.read_bytes())
    scene.corpus.take_files("state directory", scene.processes.state_dir)
    await scene.corpus.take_descriptions(scene.processes.client)
    (scene.drop / "go").touch()
    assert await scene.end(works) == JobResult.SUCCEEDED
    assert await scene.end(await scene.provision("fails", "fails", container=container)) == JobResult.FAILED


async def _fail_in_every_way(scene: Scene) -> None:
    def image(**keys: Any) -> dict[str, Any]:
        return {"image": f"{REGISTRY}/team/app:1", **keys}

    ways: dict[str, tuple[Started, ErrorType]] = {
        "no-such-label": (
            await scene.processes.provision(labels=[f"nobody-{scene.planted.control}"], job_id="nobody"),
            ErrorType.NO_MATCHING_SCALER,
        ),
        "crashes": (await scene.provision("crashes", "crashes"), ErrorType.SPAWN_FAILED),
        "missing": (await scene.provision("missing", "missing"), ErrorType.SPAWN_FAILED),
        "late": (await scene.provision("silent", "late", adoption_timeout=1), ErrorType.ADOPTION_TIMEOUT),
        "dies": (await scene.provision("dies", "dies"), ErrorType.AGENT_LOST),
        **{
            name: (await scene.provision("works", name, container=image(auth=auth)), ErrorType.AUTH_REFUSED)
            for name, auth in {
                "absent": {"tokenSecret": "vault:absent"},
                "for-another-registry": {"tokenSecret": "elsewhere:other-token"},
                "not-for-registries": {"tokenSecret": "ci:job-value"},
                "user-not-served": {"usernameSecret": "elsewhere:other-token", "tokenSecret": "vault:token"},
            }.items()
        },
        "not-for-jobs": (
            await scene.provision("works", "not-for-jobs", container=image(env={"X": {"secret": "vault:token"}})),
            ErrorType.SPAWN_FAILED,
        ),
        "reserved": (
            await scene.provision(
                "works", "reserved", container=image(env={"KICI_AGENT_ID": {"secret": "ci:job-value"}})
            ),
            ErrorType.SPAWN_FAILED,
        ),
    }
    for name, (started, expected) in ways.items():
        assert (name, await scene.end(started)) == (name, expected)


async def _be_called_off(scene: Scene) -> None:
    """Cancelled while nobody has registered, and while the agent serves; the second one bears a memo."""
    waiting = await scene.provision("silent", "waiting")
    await scene.processes.reaches(waiting, S.AWAITING_ADOPTION)
    await scene.processes.hatchway.cancel(waiting.workflow_id)
    assert await scene.end(waiting) == "Cancelled"
    control = scene.planted.control
    handle = await scene.processes.client.start_workflow(
        "ProvisionWorkflow", {"labels": ["serves", control]}, id=f"memo-{control}", task_queue="hatchway",
        memo={"note": control}, id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
    )  # fmt: skip
    serving = await scene.processes.provision(handle.id, labels=["serves", control])
    await scene.processes.reaches(serving, S.ACTIVE)
    await scene.processes.hatchway.cancel(serving.workflow_id, reason=control)
    assert await scene.end(serving) == "Cancelled"


async def _meet_strangers(scene: Scene) -> None:
    """Calls that the gateway refuses, each with a secret in it."""
    guess, url = scene.planted.guess, scene.processes.gateway_url
    bearer = {"Authorization": f"Bearer {guess}"}
    body = {"registration_id": "r-1", "busy": True}
    async with httpx.AsyncClient(trust_env=False, base_url=f"{url}/v1") as http:
        answers = [
            await http.post("/claims/redeem", json={"claim_code": guess, "nonce": secrets.token_urlsafe(16)}),
            await http.post("/claims/redeem", json={"claim_code": [guess], "nonce": guess, guess: 1}),
            await http.post("/claims/redeem", content=guess.encode()),
            await http.post("/claims/redeem", content=guess.encode() * 3000),
            await http.post("/agents/heartbeat", json=body, headers=bearer),
            await http.post(
                "/agents/register", json={"registration_id": guess, "agent_version": guess}, headers=bearer
            ),
            await http.post("/agents/complete", json={"token": guess}, headers=bearer),
            await http.get("/agents/heartbeat", params={"token": guess}, headers={"Authorization": f"Basic {guess}"}),
        ]
    assert {answer.status_code // 100 for answer in answers} == {4}
    assert not any(guess in answer.text for answer in answers)


async def _lose_the_database(scene: Scene) -> None:
    """A driver quotes the address that it cannot reach, and an address may hold the password."""
    serves = await scene.provision("serves", "outage")
    await scene.processes.reaches(serves, S.ACTIVE)
    scene.processes.database.cut()
    await scene.processes.hatchway.release(serves.workflow_id, serves.agent_id, now=True)
    await until(lambda: b"StoreUnreachable" in scene.processes.worker.log.read_bytes(), what="the outage in the log")
    scene.processes.database.heal()
    assert await scene.end(serves) == JobResult.UNKNOWN


async def _handed_over(scene: Scene) -> None:
    """An agent whose record cannot be read: its teardown is handed over, and ends when the record is repaired."""
    started = await scene.provision("serves", "stuck")
    await scene.processes.reaches(started, S.ACTIVE)
    intent = scene.processes.state_dir / started.agent_id / "intent.json"
    sound = intent.read_bytes()
    intent.write_bytes(b"{")
    await scene.processes.hatchway.release(
        started.workflow_id, started.agent_id, reason=EndReason.OPERATOR, by=scene.planted.control, now=True
    )
    assert await scene.end(started) == JobResult.UNKNOWN
    teardown = scene.processes.client.get_workflow_handle(f"teardown/{started.agent_id}")

    async def tried() -> bool:
        pending = (await teardown.describe()).raw_description.pending_activities
        return any(activity.HasField("last_failure") for activity in pending)

    await until(tried, what="a failed attempt of the teardown's workflow")
    await scene.corpus.take_descriptions(scene.processes.client)
    intent.write_bytes(sound)
    await asyncio.wait_for(teardown.result(), 120)


def _all_secrets(scene: Scene) -> dict[str, str]:
    codes = {**scene.overheard.secrets(), **scene.claims_never_redeemed()}
    password = str(conninfo_to_dict(scene.processes.dsn)["password"])
    return {**scene.planted.secrets(), **codes, **pieces_of(codes), "the database's password": password}
