"""The configuration file's schema. Keys are camelCase, as in KiCI; unknown keys are refused.

Only shapes live here. What two keys say about each other is in `checks.py`, reading files is in `loading.py`.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from hatchway.model import EnvValue, Label, ResourceRequest, SecretRef

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class ConfigModel(BaseModel):
    model_config = ConfigDict(
        extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, frozen=True,
        hide_input_in_errors=True, serialize_by_alias=True,
    )  # fmt: skip


class ScalerType(StrEnum):
    CONTAINER = "container"
    BARE_METAL = "bare-metal"


class PullPolicy(StrEnum):
    IF_NOT_PRESENT = "IfNotPresent"
    ALWAYS = "Always"
    NEVER = "Never"


class RegistryAuthConfig(ConfigModel):
    """A scaler's own registry credentials, by reference."""

    registry: str
    username: str | None = None
    username_secret: SecretRef | None = None
    token_secret: SecretRef


class LabelSet(ConfigModel):
    """One kind of agent that a scaler can make."""

    labels: Annotated[list[Label], Field(min_length=1)]
    exclude_labels: list[Label] = []
    resources: ResourceRequest | None = None
    env: dict[str, EnvValue] = {}
    # container
    image: str | None = None
    pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    container_socket: bool = False
    cap_add: list[str] = []
    agent: Literal["image", "inject"] = "image"
    """`image`: the image's entrypoint is the agent. `inject`: the reference agent is copied in and run."""
    # bare-metal
    command: list[str] | None = None
    """The agent's argv. Unset: this installation's own reference agent."""
    user: str | None = None
    """The account that the agent runs as. Needs a worker that is root; any other worker runs its agents as itself,
    because it cannot become somebody else. A worker that is root needs this, or `runAsRoot: true`."""
    run_as_root: bool = False
    working_directory: str | None = None


class Scaler(ConfigModel):
    """A pool of agents of one backend."""

    name: Name
    type: ScalerType
    max_agents: Annotated[int, Field(ge=0, le=1_000_000)]
    max_concurrent_spawns: Annotated[int, Field(ge=1, le=1000)] = 8
    label_sets: Annotated[list[LabelSet], Field(min_length=1)]
    orchestrator_url: str | None = None
    mandatory_labels: list[Label] = []
    platform: str | None = None
    roles: list[Label] = []
    hosts: list[Name] = []
    """Host ids whose workers serve this scaler. Empty: every worker that can reach the backend."""
    host: str | None = None
    """container: the engine's socket or URL. Unset: DOCKER_HOST, else the local socket."""
    network_isolation: bool = True
    allow_job_image: bool = False
    registry_auth: list[RegistryAuthConfig] = []
    claim_ttl_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    agent_token_ttl_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    spawn_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    adoption_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    max_lifetime_seconds: Annotated[int, Field(ge=1, le=604_800)] | None = None
    stop_grace_seconds: Annotated[int, Field(ge=0, le=600)] = 30

    @property
    def stop_grace(self) -> timedelta:
        return timedelta(seconds=self.stop_grace_seconds)


class FileContext(ConfigModel):
    """Secrets in files of one directory: the reference's name is the file's path below it."""

    type: Literal["file"]
    path: str
    registries: list[str] = []
    """Registry hosts that these secrets may be sent to. A context without any serves environments only."""
    names: list[str] = ["*"]
    env: bool | None = None
    """Whether agents may get these secrets in their environment. Unset: only where `registries` is empty."""


class EnvContext(ConfigModel):
    """Secrets in the worker's environment: only variables that start with HATCHWAY_SECRET_.

    The reference `<context>:registry-token` is served by HATCHWAY_SECRET_REGISTRY_TOKEN.
    """

    type: Literal["env"]
    registries: list[str] = []
    names: list[str] = ["*"]
    env: bool | None = None


SecretContext = Annotated[FileContext | EnvContext, Field(discriminator="type")]


class SecretsConfig(ConfigModel):
    contexts: dict[Name, SecretContext] = {}


class Defaults(ConfigModel):
    resources: ResourceRequest | None = None


class Config(ConfigModel):
    """The whole file."""

    version: Literal[1]
    global_max_agents: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    defaults: Defaults = Defaults()
    secrets: SecretsConfig = SecretsConfig()
    scalers: Annotated[list[Scaler], Field(min_length=1)]

    def scaler(self, name: str) -> Scaler | None:
        return next((s for s in self.scalers if s.name == name), None)
