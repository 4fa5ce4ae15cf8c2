"""A private image is pulled with the credentials of each source, and with wrong ones by none.

From the reference, entry or helper to the running container: a real engine, a real registry with a password, and AWS on
loopback. What is not real is ECR's own registry: a local one takes the password that the stand-in of ECR gives out.
"""

from __future__ import annotations

import base64
import json
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest

from hatchway.backends.container import ContainerBackend
from hatchway.config.schema import Scaler, SecretsConfig
from hatchway.dev.registry import EmbeddedRegistry
from hatchway.errors import PermanentSpawnError, SpawnCode
from hatchway.model import ContainerSpec
from hatchway.registry.ecr import EcrHost, EcrLogins
from hatchway.registry.pull import Logins
from hatchway.secrets.resolver import SecretResolver
from tests.docker.backends.rig import MakeSpec, forget, quiet, remove_containers
from tests.docker.registry.second_registry import TokenServer, htpasswd, second_door
from tests.support.aws import REGION
from tests.support.docker_fixtures import RegistryImages

pytestmark = [pytest.mark.needs("registry"), pytest.mark.usefixtures("clean_images")]

WRONG = "a-wrong-password"
PROVIDERS = ("file", "env", "aws-secrets-manager", "aws-ssm")
DOCKER_CONFIGS = ("auths", "auths of a path", "credHelpers", "credsStore")


@dataclass
class Host:
    """One worker's surroundings: what a source finds there."""

    directory: Path
    registry: str
    aws: str
    environ: dict[str, str] = field(default_factory=dict)
    recognise: Callable[[str], EcrHost | None] = lambda registry: None

    def reference(self, provider: str, value: str) -> str:
        """Put a secret where this provider finds it; the reference to it."""
        name = f"token-{uuid.uuid4().hex}"
        if provider == "file":
            (self.directory / name).write_text(value + "\n")
        elif provider == "env":
            self.environ[f"HATCHWAY_SECRET_{name.upper().replace('-', '_')}"] = value
        elif provider == "aws-secrets-manager":
            client = boto3.client("secretsmanager", region_name=REGION, endpoint_url=self.aws)
            client.create_secret(Name=name, SecretString=json.dumps({"token": value, "other": "x"}))
            name += "#token"
        else:
            client = boto3.client("ssm", region_name=REGION, endpoint_url=self.aws)
            client.put_parameter(Name=f"/ci/{name}", Value=value, Type="SecureString")
            name = f"/ci/{name}"
        return f"{provider}:{name}"

    def docker_config(self, kind: str, user: str, password: str) -> None:
        entry = {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}
        helper = self.directory / "docker-credential-lab"
        helper.write_text(f"#!/bin/sh\necho '{json.dumps({'Username': user, 'Secret': password})}'\n")
        helper.chmod(0o755)
        kinds: dict[str, dict[str, Any]] = {
            "auths": {"auths": {self.registry: entry}},
            "auths of a path": {"auths": {f"{self.registry}/team": entry, self.registry: {"auth": "bm86bm8="}}},
            "credHelpers": {"credHelpers": {self.registry: "lab"}},
            "credsStore": {"credsStore": "lab", "auths": {self.registry: {}}},
            "identity token": {"auths": {self.registry: {"identitytoken": password}}},
        }
        (self.directory / "config.json").write_text(json.dumps(kinds[kind]))

    async def spawn(
        self, backend: ContainerBackend, spec: MakeSpec, image: str, auth: Any = None, **scaler: Any
    ) -> str | None:
        """Resolve and spawn as a worker does; which source served."""
        place = {"region": REGION, "endpointUrl": self.aws}
        contexts = {
            "file": {"type": "file", "path": str(self.directory), "registries": [self.registry]},
            "env": {"type": "env", "registries": [self.registry]},
            "aws-secrets-manager": {"type": "aws-secrets-manager", "registries": [self.registry], **place},
            "aws-ssm": {"type": "aws-ssm", "registries": [self.registry], **place},
        }
        resolver = SecretResolver(SecretsConfig.model_validate({"contexts": contexts}), self.environ)
        environ = {"DOCKER_CONFIG": str(self.directory), "PATH": f"{self.directory}:/usr/bin:/bin"}
        container = ContainerSpec.model_validate({"image": image, "auth": auth})
        one = Scaler.model_validate(
            {
                "name": "docker", "type": "container", "maxAgents": 1, "allowJobImage": True,
                "labelSets": [{"labels": ["x"], "image": "nginx"}], **scaler,
            }
        )  # fmt: skip
        logins = Logins(environ, EcrLogins(recognise=self.recognise))
        found = await logins.credentials(image, container, one, resolver)
        wanted = spec(image, auth=found)
        ref = await backend.spawn(wanted, quiet)
        assert await backend.find(wanted.agent_id) == ref
        return found.source if found else None


@pytest.fixture
def host(tmp_path: Path, registry: EmbeddedRegistry, aws_endpoint: str) -> Host:
    return Host(tmp_path, registry.host, aws_endpoint)


@pytest.mark.scenario("S31")
@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("whose", ["job", "scaler"])
async def test_a_private_image_is_pulled_with_a_referenced_token_of_every_provider(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    host: Host,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    whose: str,
    provider: str,
    right: bool,
) -> None:
    reference = host.reference(provider, registry.login.password if right else WRONG)
    auth = {"username": registry.login.username, "tokenSecret": reference}
    how: dict[str, Any] = {"auth": auth} if whose == "job" else {"registryAuth": [{"registry": registry.host, **auth}]}

    if right:
        assert await host.spawn(backend, spec, registry_images.agent, **how) == whose
        return
    with pytest.raises(PermanentSpawnError, match=f"the {whose}'s credentials") as refused:
        await host.spawn(backend, spec, registry_images.agent, **how)

    assert refused.value.code is SpawnCode.AUTH_DENIED
    assert WRONG not in str(refused.value)


@pytest.mark.scenario("S31")
@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
@pytest.mark.parametrize("kind", DOCKER_CONFIGS)
async def test_a_private_image_is_pulled_with_each_part_of_a_docker_config(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    host: Host,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    kind: str,
    right: bool,
) -> None:
    host.docker_config(kind, registry.login.username, registry.login.password if right else WRONG)

    if right:
        source = await host.spawn(backend, spec, registry_images.agent, useHostDockerConfig=True)
        assert source == "host's docker config"
        return
    with pytest.raises(PermanentSpawnError, match="docker config's credentials") as refused:
        await host.spawn(backend, spec, registry_images.agent, useHostDockerConfig=True)

    assert refused.value.code is SpawnCode.AUTH_DENIED
    assert WRONG not in str(refused.value)


async def test_a_docker_config_serves_nobody_unless_the_scaler_says_so(
    backend: ContainerBackend,
    spec: MakeSpec,
    host: Host,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
) -> None:
    host.docker_config("auths", registry.login.username, registry.login.password)

    with pytest.raises(PermanentSpawnError, match="without credentials"):
        await host.spawn(backend, spec, registry_images.agent)


@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
async def test_a_private_image_is_pulled_with_an_identity_token(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    host: Host,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    docker_client: Any,
    installation: str,
    tmp_path: Path,
    right: bool,
) -> None:
    """The engine takes it to the registry's token server as a refresh token, and never as a password."""
    token = secrets.token_urlsafe(32)
    with TokenServer(tmp_path, token).running() as server, second_door(registry, tmp_path, server.auth) as door:
        host.registry = door
        host.docker_config("identity token", "<token>", token if right else WRONG)
        image = registry_images.agent.replace(registry.host, door)
        try:
            if right:
                source = await host.spawn(backend, spec, image, useHostDockerConfig=True)
                assert source == "host's docker config"
            else:
                with pytest.raises(PermanentSpawnError) as refused:
                    await host.spawn(backend, spec, image, useHostDockerConfig=True)
                assert refused.value.code is SpawnCode.AUTH_DENIED
        finally:
            remove_containers(docker_client, installation)
            forget(docker_client, door)

    assert set(server.grants) == {"refresh_token"}


@pytest.mark.scenario("S32")
@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
async def test_a_private_image_is_pulled_with_the_password_that_ecr_gives_out(
    *,
    backend: ContainerBackend,
    spec: MakeSpec,
    host: Host,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    docker_client: Any,
    installation: str,
    tmp_path: Path,
    aws_endpoint: str,
    right: bool,
) -> None:
    client = boto3.client("ecr", region_name=REGION, endpoint_url=aws_endpoint)
    given_out = client.get_authorization_token()["authorizationData"][0]["authorizationToken"]
    user, _, password = base64.b64decode(given_out).decode().partition(":")
    auth = htpasswd(tmp_path, user, password if right else WRONG)
    with second_door(registry, tmp_path, auth) as door:
        host.registry = door
        host.recognise = lambda name: EcrHost("123456789012", REGION) if name == door else None
        image = registry_images.agent.replace(registry.host, door)
        try:
            if right:
                source = await host.spawn(backend, spec, image, ecrFor="all-images")
                assert source == "worker's AWS identity"
            else:
                with pytest.raises(PermanentSpawnError, match="AWS identity's credentials") as refused:
                    await host.spawn(backend, spec, image, ecrFor="all-images")
                assert refused.value.code is SpawnCode.AUTH_DENIED
                assert password not in str(refused.value)
        finally:
            remove_containers(docker_client, installation)
            forget(docker_client, door)
