"""No secret anywhere: what lies in AWS and what a credential helper prints, in provisions of every kind.

Real processes, a real registry with a password, AWS on loopback, and a helper that does as a file beside it says.
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

import boto3
import docker
import pytest

from hatchway.client import ProvisionFailed
from hatchway.dev import images
from hatchway.dev.ports import free_port
from hatchway.dev.registry import EmbeddedRegistry
from hatchway.errors import ErrorType
from hatchway.model import JobResult
from hatchway.store.installation import installation_id
from hatchway.store.pool import Database
from tests.docker.backends.rig import forget, remove_containers
from tests.docker.network.traces import remove_networks
from tests.support.aws import IDENTITY, REGION
from tests.support.corpus import Corpus
from tests.support.docker_fixtures import bridge_address
from tests.support.markers import hits, marker
from tests.support.processes import Processes, running_processes
from tests.support.proxy import FaultProxy

pytestmark = pytest.mark.needs("registry", "nftables")


@dataclass
class Planted:
    """The secrets, and the control that is none."""

    password: str
    control: str = field(default_factory=lambda: f"control-{secrets.token_hex(8)}")
    wrong: str = field(default_factory=lambda: marker("wrong"))
    beside: str = field(default_factory=lambda: marker("beside"))
    no_json: str = field(default_factory=lambda: marker("no-json"))
    job_value: str = field(default_factory=lambda: marker("job"))
    helper_garbage: str = field(default_factory=lambda: marker("garbage"))
    helper_wrong: str = field(default_factory=lambda: marker("helper"))

    def secrets(self) -> dict[str, str]:
        return {f"the {name}": getattr(self, name) for name in self.__dataclass_fields__ if name != "control"}


@dataclass
class Scene:
    processes: Processes
    planted: Planted
    registry: EmbeddedRegistry
    helper: Path

    async def end(self, label: str, auth: dict[str, Any] | None = None, image: str = "agent", **env: Any) -> str:
        """Provision a job; its result, or the type of its failure with the code of a failed spawn."""
        container = {"image": f"{self.registry.host}/team/{self.planted.control}:{image}", "auth": auth, "env": env}
        started = await self.processes.provision(
            labels=[label, self.planted.control], job_id=secrets.token_hex(4), container=container
        )
        try:
            return (await asyncio.wait_for(self.processes.hatchway.outcome(started), 120)).result.value
        except ProvisionFailed as e:
            code = f" {str(e).partition(':')[0]}" if e.error_type == ErrorType.SPAWN_FAILED else ""
            return f"{e.error_type}{code}"

    def helper_says(self, script: str) -> None:
        self.helper.write_text(f"#!/bin/sh\n{script}\n")
        self.helper.chmod(0o755)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Passable for the user that Postgres runs as."""
    path = Path(tempfile.mkdtemp(prefix="hatchway-markers-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


def _config(planted: Planted, registry: str, aws: str, gateway: str) -> dict[str, Any]:
    place = {"region": REGION, "endpointUrl": aws}

    def scaler(name: str, **keys: Any) -> dict[str, Any]:
        command = {"HATCHWAY_AGENT_COMMAND": json.dumps(["/bin/sh", "-c", 'echo "$JOB_VALUE"'])}
        labels = [{"labels": [name, planted.control], "env": command}]
        return {
            "name": f"{name}-{planted.control}", "type": "container", "maxAgents": 5, "allowJobImage": True,
            "stopGraceSeconds": 1, "orchestratorUrl": gateway, "labelSets": labels, **keys,
        }  # fmt: skip

    return {
        "version": 1,
        "secrets": {
            "contexts": {
                "vault": {"type": "aws-secrets-manager", "registries": [registry], **place},
                "ssm": {"type": "aws-ssm", "names": ["/job/*"], **place},
            }
        },
        "scalers": [scaler("aws"), scaler("host", useHostDockerConfig=True)],
    }


@pytest.fixture
async def scene(
    directory: Path, registry: EmbeddedRegistry, docker_client: docker.DockerClient, aws_endpoint: str
) -> AsyncIterator[Scene]:
    planted, port = Planted(registry.login.password), free_port()
    control = planted.control
    vault = boto3.client("secretsmanager", region_name=REGION, endpoint_url=aws_endpoint)
    vault.create_secret(
        Name=f"{control}/right", SecretString=json.dumps({"token": planted.password, "x": planted.beside})
    )
    vault.create_secret(Name=f"{control}/wrong", SecretString=planted.wrong)
    vault.create_secret(Name=f"{control}/no-json", SecretString=planted.no_json)
    parameters = boto3.client("ssm", region_name=REGION, endpoint_url=aws_endpoint)
    parameters.put_parameter(Name=f"/job/{control}", Value=planted.job_value, Type="SecureString")
    registry.put(f"team/{control}:agent", images.agent_image())
    helper = directory / "bin" / "docker-credential-lab"
    helper.parent.mkdir(mode=0o755)
    (directory / "config.json").write_text(json.dumps({"credHelpers": {registry.host: "lab"}}))
    with FaultProxy(("127.0.0.1", port), host=bridge_address(docker_client)) as between:
        async with running_processes(
            directory,
            _config(planted, registry.host, aws_endpoint, f"http://{between.address}"),
            namespace=f"n-{control}",
            instance_id=f"gateway-{control}",
            gateway_port=port,
            worker_env={**IDENTITY, "DOCKER_CONFIG": str(directory), "PATH": f"{helper.parent}:{os.environ['PATH']}"},
        ) as processes:
            yield Scene(processes, planted, registry, helper)
            async with Database.open(processes.dsn, max_size=1) as db:
                installation = await installation_id(db)
    remove_containers(docker_client, installation)
    remove_networks(docker_client, installation)
    forget(docker_client, registry.host)


@pytest.mark.scenario("S33")
@pytest.mark.scenario("S41")
async def test_what_lies_in_aws_and_what_a_helper_prints_is_written_down_nowhere(scene: Scene) -> None:
    control, planted, user = scene.planted.control, scene.planted, scene.registry.login.username
    answer = json.dumps({"Username": user, "Secret": planted.password})
    wrong = json.dumps({"Username": user, "Secret": planted.helper_wrong})

    def auth(name: str) -> dict[str, Any]:
        return {"username": user, "tokenSecret": f"vault:{control}/{name}"}

    ends = {
        "right": await scene.end("aws", auth("right#token"), JOB_VALUE={"secret": f"ssm:/job/{control}"}),
        "wrong": await scene.end("aws", auth("wrong")),
        "no such key": await scene.end("aws", auth("right#absent")),
        "no JSON": await scene.end("aws", auth("no-json#token")),
        "absent": await scene.end("aws", auth("absent")),
        "no such image": await scene.end("aws", auth("right#token"), image="absent"),
    }
    for name, script in {
        "helper right": f"echo '{answer}'",
        "helper wrong": f"echo '{wrong}'",
        "helper garbage": f"echo '{planted.helper_garbage}'; echo '{planted.helper_garbage}' >&2",
        "helper fails": f"echo '{planted.helper_garbage}'; exit 1",
        "helper has none": "echo 'credentials not found'; exit 1",
    }.items():
        scene.helper_says(script)
        ends[name] = await scene.end("host")
    await scene.processes.nothing_left()
    corpus = Corpus()
    await corpus.take_all(scene.processes)

    denied = f"{ErrorType.SPAWN_FAILED} auth_denied"
    assert ends == {
        "right": JobResult.SUCCEEDED, "wrong": denied, "no such key": ErrorType.AUTH_REFUSED,
        "no JSON": ErrorType.AUTH_REFUSED, "absent": ErrorType.AUTH_REFUSED,
        "no such image": f"{ErrorType.SPAWN_FAILED} image_not_found",
        "helper right": JobResult.SUCCEEDED, "helper wrong": denied, "helper garbage": denied, "helper fails": denied,
        "helper has none": denied,
    }  # fmt: skip
    seen = {name for name, place in corpus.places.items() if hits([place], {"the control": control})}
    assert seen >= {
        "history: inputs", "history: failures", "worker log", "Postgres dump", "Temporal's database, raw",
        "Temporal's database, rows",
    }  # fmt: skip
    assert hits(corpus.places.values(), planted.secrets()) == []
