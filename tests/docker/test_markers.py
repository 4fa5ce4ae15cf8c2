"""No secret anywhere, with containers: real processes, a real registry with a password, and what they wrote down.

What a job prints lies with the engine as it was printed, and goes with its container; the search looks at what
Hatchway shows of it. The engine's own record of a container holds its environment: whoever may ask the engine is root.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import docker
import pytest
from psycopg.conninfo import conninfo_to_dict

from hatchway.client import ProvisionFailed, Started
from hatchway.dev import images
from hatchway.dev.ports import free_port
from hatchway.dev.registry import EmbeddedRegistry
from hatchway.errors import ErrorType
from hatchway.model import JobResult, ProvisionState
from hatchway.store.installation import installation_id
from hatchway.store.pool import Database
from tests.docker.backends.rig import forget, remove_containers
from tests.docker.network.traces import remove_networks
from tests.support.corpus import Corpus
from tests.support.docker_fixtures import bridge_address
from tests.support.markers import Overheard, hits, marker, pieces_of
from tests.support.namespaces import until
from tests.support.processes import Processes, running_processes
from tests.support.proxy import FaultProxy

S = ProvisionState
PRINT_ALL = """\
for value in "$JOB_VALUE" "$LABEL_VALUE" "$KICI_SCALER_CLAIM_CODE"; do
  printf '%s\\n' "$value"
  printf 'user:%s' "$value" | base64
done
"""
pytestmark = pytest.mark.needs("registry", "nftables")


@dataclass
class Scene:
    processes: Processes
    registry: EmbeddedRegistry
    control: str
    planted: dict[str, str]
    overheard: Overheard
    corpus: Corpus = field(default_factory=Corpus)

    async def provision(self, label: str, name: str, image: str, reference: str = "vault:token") -> Started:
        container = {
            "image": f"{self.registry.host}/team/{image}",
            "auth": {"username": self.registry.login.username, "tokenSecret": reference},
            "env": {"JOB_VALUE": {"secret": "ci:job-value"}},
        }
        return await self.processes.provision(
            labels=[label, self.control], job_id=f"{name}-{self.control}", run_id=f"run-{self.control}",
            container=container,
        )  # fmt: skip

    async def end(self, started: Started) -> tuple[str, str]:
        """The job's result, or the type of the failure with its message."""
        try:
            outcome = await asyncio.wait_for(self.processes.hatchway.outcome(started), 120)
        except ProvisionFailed as e:
            return e.error_type, str(e)
        return outcome.result, ""

    def logs(self, agent_id: str) -> bytes:
        """`hatchway logs AGENT`."""
        command = [sys.executable, "-m", "hatchway.cli", "logs", agent_id]
        env = {"PATH": "/usr/bin:/bin", "DATABASE_URL": self.processes.dsn}
        return subprocess.run(command, env=env, capture_output=True, check=True, timeout=60).stdout


@pytest.fixture
def directory() -> Iterator[Path]:
    """Passable for the user that Postgres runs as."""
    path = Path(tempfile.mkdtemp(prefix="hatchway-markers-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


def _config(directory: Path, registry: str, control: str, gateway: str) -> dict[str, Any]:
    def kind(label: str, *script: str) -> dict[str, Any]:
        command = {"HATCHWAY_AGENT_COMMAND": json.dumps(["/bin/sh", "-c", "\n".join(script)])} if script else {}
        return {"labels": [label, control], "env": {"LABEL_VALUE": {"secret": "ci:label-value"}, **command}}

    return {
        "version": 1,
        "secrets": {
            "contexts": {
                "vault": {"type": "file", "path": str(directory / "secrets"), "registries": [registry]},
                "ci": {"type": "env", "names": ["job-*", "label-*"]},
            }
        },
        "scalers": [
            {
                "name": f"docker-{control}",
                "type": "container",
                "maxAgents": 10,
                "allowJobImage": True,
                "stopGraceSeconds": 1,
                "orchestratorUrl": gateway,
                "labelSets": [
                    kind("works", PRINT_ALL, "exit 0"),
                    kind("stays", PRINT_ALL, f"echo {control}", "exec sleep 600"),
                ],
            }
        ],
    }


@pytest.fixture
async def scene(
    directory: Path, registry: EmbeddedRegistry, docker_client: docker.DockerClient
) -> AsyncIterator[Scene]:
    control = f"control-{secrets.token_hex(8)}"
    planted = {
        "the registry's password": registry.login.password,
        "a wrong password": marker("wrong"),
        "the job's value": marker("job"),
        "the label set's value": marker("label"),
    }
    overheard, port = Overheard(), free_port()
    (directory / "secrets").mkdir(mode=0o700)
    (directory / "secrets" / "token").write_text(planted["the registry's password"])
    (directory / "secrets" / "wrong").write_text(planted["a wrong password"])
    crashing = replace(images.busybox_image(), entrypoint=("/bin/sh", "-c", f"{PRINT_ALL}\necho {control}; exit 1"))
    registry.put(f"team/{control}:agent", images.agent_image())
    registry.put(f"team/{control}:crashes", crashing)
    with FaultProxy(("127.0.0.1", port), host=bridge_address(docker_client), tap=overheard.chunks.append) as between:
        async with running_processes(
            directory,
            _config(directory, registry.host, control, f"http://{between.address}"),
            namespace=f"n-{control}",
            instance_id=f"gateway-{control}",
            gateway_port=port,
            worker_env={
                "HATCHWAY_SECRET_JOB_VALUE": planted["the job's value"],
                "HATCHWAY_SECRET_LABEL_VALUE": planted["the label set's value"],
            },
        ) as processes:
            yield Scene(processes, registry, control, planted, overheard)
            async with Database.open(processes.dsn, max_size=1) as db:
                installation = await installation_id(db)
    registry.resume()
    remove_containers(docker_client, installation)
    remove_networks(docker_client, installation)
    forget(docker_client, registry.host)


@pytest.mark.scenario("S41")
async def test_no_secret_is_written_down_anywhere(scene: Scene) -> None:
    await _pull_slowly(scene)
    await _work_and_be_read(scene)
    await _fail_in_every_way(scene)
    await scene.processes.nothing_left()

    await scene.corpus.take_all(scene.processes)
    places = scene.corpus.places

    blind = {name for name, place in places.items() if not hits([place], {"the control": scene.control})}
    assert blind <= CANNOT_HOLD, "the search does not see what is there"
    assert set(places) >= {"agents' output", "description: heartbeats", "history: failures", "worker log"}
    codes = scene.overheard.secrets()
    assert {name.rstrip(" 0123456789") for name in codes} == {"claim code", "nonce", "token"}
    password = str(conninfo_to_dict(scene.processes.dsn)["password"])
    wanted = {**scene.planted, **codes, **pieces_of(codes), "the database's password": password}
    assert hits(places.values(), wanted) == []


CANNOT_HOLD = {
    "Temporal server log", "Postgres log", "description: inputs", "description: failures", "state directory",
}  # fmt: skip
"""Places that are searched for secrets as well, and that the control has no way into, or only in a slow moment."""


async def _pull_slowly(scene: Scene) -> None:
    """A registry that does not answer for a while: the spawn says with its heartbeats what it waits for."""
    scene.registry.hang()
    slow = await scene.provision("works", "slow", f"{scene.control}:agent")

    async def said() -> bool:
        described = await scene.processes.client.get_workflow_handle(slow.workflow_id).describe()
        pending = described.raw_description.pending_activities
        return any(activity.heartbeat_details.payloads for activity in pending)

    await until(said, what="a heartbeat of the spawn")
    await scene.corpus.take_descriptions(scene.processes.client)
    called_off = await scene.provision("works", "called-off", f"{scene.control}:agent")
    await scene.processes.reaches(called_off, S.SPAWNING)
    await scene.processes.hatchway.cancel(called_off.workflow_id)
    scene.registry.resume()
    assert (await scene.end(called_off))[0] == "Cancelled"
    assert (await scene.end(slow))[0] == JobResult.SUCCEEDED


async def _work_and_be_read(scene: Scene) -> None:
    """A job that prints its secrets, read while it runs, then cancelled."""
    stays = await scene.provision("stays", "stays", f"{scene.control}:agent")
    await scene.processes.reaches(stays, S.ACTIVE)

    async def printed() -> bytes | None:
        text = await asyncio.to_thread(scene.logs, stays.agent_id)
        return text if scene.control.encode() in text else None

    text = await until(printed, what="the job's output")
    assert b"[redacted]" in text
    scene.corpus.add("agents' output", stays.agent_id, text)
    await scene.corpus.take_descriptions(scene.processes.client)
    await scene.processes.hatchway.cancel(stays.workflow_id)
    assert (await scene.end(stays))[0] == "Cancelled"


async def _fail_in_every_way(scene: Scene) -> None:
    """The image lies in the engine by now, which must not help the wrong password."""
    control = scene.control
    wrong = await scene.provision("works", "wrong", f"{control}:agent", "vault:wrong")
    absent = await scene.provision("works", "absent", f"{control}:agent", "vault:absent")
    not_for_registries = await scene.provision("works", "not-for-registries", f"{control}:agent", "ci:job-value")
    missing = await scene.provision("works", "missing", f"{control}:no-such-tag")
    crashes = await scene.provision("works", "crashes", f"{control}:crashes")

    assert await _code(scene, wrong) == (ErrorType.SPAWN_FAILED, "auth_denied")
    assert (await scene.end(absent))[0] == ErrorType.AUTH_REFUSED
    assert (await scene.end(not_for_registries))[0] == ErrorType.AUTH_REFUSED
    assert await _code(scene, missing) == (ErrorType.SPAWN_FAILED, "image_not_found")
    kind, said = await scene.end(crashes)
    assert kind == ErrorType.SPAWN_FAILED
    assert control in said
    assert said.count("[redacted]") == 6
    scene.registry.stop()
    gone = await scene.provision("works", "gone", f"{control}:agent")
    assert await _code(scene, gone) == (ErrorType.SPAWN_FAILED, "registry_unreachable")
    scene.registry.resume()


async def _code(scene: Scene, started: Started) -> tuple[str, str]:
    kind, said = await scene.end(started)
    return kind, said.partition(":")[0]
