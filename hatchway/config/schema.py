"""The configuration file's schema. Keys are camelCase, as in KiCI; unknown keys are refused.

Only shapes live here. What two keys say about each other is in `checks.py`, reading files is in `loading.py`.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from hatchway.config.base import ConfigModel, Whole
from hatchway.config.ec2_schema import Ec2LabelSet, Ec2Scaler
from hatchway.config.event_schema import Targets
from hatchway.model import EnvValue, Label, ResourceRequest, SecretRef
from hatchway.quantities import cap_bytes, cap_mcpu

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]

DAY_SECONDS = 86_400

MOST_AGENTS = 1_000_000
Agents = Annotated[Whole, Field(ge=0, le=MOST_AGENTS)]
Seconds = Annotated[Whole, Field(ge=1, le=86_400)]


class ScalerType(StrEnum):
    CONTAINER = "container"
    BARE_METAL = "bare-metal"
    EVENT = "event"
    EC2 = "ec2"


class PullPolicy(StrEnum):
    IF_NOT_PRESENT = "IfNotPresent"
    ALWAYS = "Always"
    NEVER = "Never"


def _cap_of_cpus(amount: Any) -> Any:
    if isinstance(amount, int | float | str):
        cap_mcpu(amount)
    return amount


def _cap_of_memory(amount: Any) -> Any:
    if isinstance(amount, int | float | str):
        cap_bytes(amount)
    return amount


class ResourceCap(ConfigModel):
    """What agents may reserve together. Left out: no cap on that kind."""

    cpus: Annotated[float | str | None, BeforeValidator(_cap_of_cpus)] = None
    memory: Annotated[int | str | None, BeforeValidator(_cap_of_memory)] = None

    @property
    def max_mcpu(self) -> int | None:
        return None if self.cpus is None else cap_mcpu(self.cpus)

    @property
    def max_mem_bytes(self) -> int | None:
        return None if self.memory is None else cap_bytes(self.memory)

    @model_validator(mode="after")
    def _caps_something(self) -> Self:
        if self.cpus is None and self.memory is None:
            raise ValueError("caps nothing: say `cpus`, `memory` or both")
        return self


class MachinePool(ResourceCap):
    """Machines that several scalers share: their agents together stay under these caps."""

    name: Name
    max_agents: Agents | None = None

    @model_validator(mode="after")
    def _caps_something(self) -> Self:
        if self.max_agents is None and self.cpus is None and self.memory is None:
            raise ValueError("caps nothing: say `maxAgents`, `cpus`, `memory` or several of them")
        return self


class WarmPool(ConfigModel):
    """Agents that are started ahead of the jobs."""

    size: Annotated[Whole, Field(ge=0, le=10_000)]
    """How many stand ready, cluster-wide. 0 lets go of those that stand."""
    idle_timeout_seconds: Annotated[Whole, Field(ge=1, le=604_800)] = 900
    """After it, an agent beyond `size` is released; the oldest first."""
    labels: list[Label] | None = None
    """The labels of the label set that they are made of. Needed where the scaler has several."""

    @property
    def idle_timeout(self) -> timedelta:
        return timedelta(seconds=self.idle_timeout_seconds)


class Backoff(ConfigModel):
    """How long a scaler whose spawns fail is left alone: `base`, doubled with each further failure, up to `max`."""

    base_seconds: Seconds = 30
    max_seconds: Seconds = 900

    @property
    def base(self) -> timedelta:
        return timedelta(seconds=self.base_seconds)

    @property
    def max(self) -> timedelta:
        return timedelta(seconds=self.max_seconds)


class Reaper(ConfigModel):
    """After how long a silence means that something is gone, and how long what ended is remembered."""

    agent_timeout_seconds: Seconds = 90
    instance_timeout_seconds: Seconds = 45
    flap_grace_seconds: Seconds = 120
    stranded_timeout_seconds: Seconds = 1800
    reattempt_seconds: Seconds = 600
    claim_retention_seconds: Annotated[Whole, Field(ge=60, le=31_536_000)] = 3600
    outcome_retention_seconds: Annotated[Whole, Field(ge=60, le=31_536_000)] | None = None
    """Unset: a day, or twice the longest spawn timeout where that is more."""


class EcrFor(StrEnum):
    """Whose images may be pulled with what the worker's AWS identity may read."""

    LABEL_SETS = "label-sets"
    ALL_IMAGES = "all-images"
    NONE = "none"


class RegistryAuthConfig(ConfigModel):
    """A scaler's own registry credentials, by reference."""

    registry: str
    username: str | None = None
    username_secret: SecretRef | None = None
    token_secret: SecretRef


Port = Annotated[Whole, Field(ge=1, le=65_535)]


class NetworkPolicy(ConfigModel):
    """What the agents of a label set reach beside the gateway. Left out: the internet, and nothing private."""

    allowlist: Annotated[list[str], Field(min_length=1)] | None = None
    """Only these: IPv4 addresses or networks, each on every port or on one (`203.0.113.7:443`)."""
    deny_all: bool = False
    """The gateway only; no DNS either."""
    host_access: list[Port] = []
    """Ports of the engine's machine, TCP and UDP, on any of its addresses."""


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
    network_policy: NetworkPolicy | None = None
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
    ec2: Ec2LabelSet | None = None


class Scaler(ConfigModel):
    """A pool of agents of one backend."""

    name: Name
    type: ScalerType
    max_agents: Agents
    resource_cap: ResourceCap | None = None
    """What this scaler's agents may reserve together."""
    machine_pool: Name | None = None
    """The pool of `machinePools` that this scaler's agents count in too."""
    warm_pool: WarmPool | None = None
    max_concurrent_spawns: Annotated[Whole, Field(ge=1, le=1000)] = 8
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
    """A network without a way to the host, to private networks and to other agents. Needs a worker that may change the
    firewall of the engine's machine; where that fails, nothing is started."""
    enforce_cgroups: bool = True
    """bare-metal: limits bind the agent's processes, or the spawn fails. False: amounts are only counted."""
    ec2: Ec2Scaler | None = None
    allow_job_image: bool = False
    registry_auth: list[RegistryAuthConfig] = []
    use_host_docker_config: bool = False
    """container: where neither the job nor `registryAuth` has credentials, those of the docker config of the worker's
    own user serve, for jobs' images too."""
    ecr_for: EcrFor = EcrFor.LABEL_SETS
    """container: whose images the worker's AWS identity fetches a password of ECR for."""
    provisioning_targets: Targets = []
    """event: where scale-up and scale-down events go; each event goes to all of them."""
    claim_ttl_seconds: Seconds = 300
    agent_token_ttl_seconds: Seconds = 600
    spawn_timeout_seconds: Seconds = 300
    adoption_timeout_seconds: Seconds = 300
    max_lifetime_seconds: Annotated[Whole, Field(ge=1, le=604_800)] | None = None
    stop_grace_seconds: Annotated[Whole, Field(ge=0, le=600)] = 30

    @property
    def stop_grace(self) -> timedelta:
        return timedelta(seconds=self.stop_grace_seconds)

    @property
    def max_lifetime(self) -> timedelta | None:
        return None if self.max_lifetime_seconds is None else timedelta(seconds=self.max_lifetime_seconds)

    @property
    def warm_label_set(self) -> LabelSet | None:
        """The label set that warm agents are made of. None: no warm pool, or (only before the checks) no one set."""
        if self.warm_pool is None:
            return None
        wanted = self.warm_pool.labels
        if wanted is None:
            return self.label_sets[0] if len(self.label_sets) == 1 else None
        named = {label.lower() for label in wanted}
        same = [one for one in self.label_sets if {label.lower() for label in one.labels} == named]
        return same[0] if len(same) == 1 else None


class FileContext(ConfigModel):
    """Secrets in files of one directory: the reference's name is the file's path below it."""

    type: Literal["file"]
    path: str
    registries: list[str] = []
    """Registry hosts that these secrets may be sent to. A context without any serves environments only."""
    targets: list[str] = []
    """Hosts of event targets that these secrets sign requests to, or log in at. Kept out of environments as well."""
    names: list[str] = ["*"]
    env: bool | None = None
    """Whether agents may get these secrets in their environment. Unset: where `registries` and `targets` are empty."""


class EnvContext(ConfigModel):
    """Secrets in the worker's environment: only variables that start with HATCHWAY_SECRET_.

    The reference `<context>:registry-token` is served by HATCHWAY_SECRET_REGISTRY_TOKEN.
    """

    type: Literal["env"]
    registries: list[str] = []
    targets: list[str] = []
    names: list[str] = ["*"]
    env: bool | None = None


class _AwsContext(ConfigModel):
    region: str | None = None
    """Unset: the worker's own, as the AWS SDK finds it."""
    endpoint_url: str | None = None
    """Instead of AWS's own endpoint: a VPC endpoint, or a stand-in."""
    registries: list[str] = []
    targets: list[str] = []
    names: list[str] = ["*"]
    env: bool | None = None


class SecretsManagerContext(_AwsContext):
    """Secrets in AWS Secrets Manager: `<context>:<name>`, or `<context>:<name>#<key>` for a key of a JSON object.

    A glob of `names` without a `#` is for the name, whatever the key; one with a `#` is for both.
    """

    type: Literal["aws-secrets-manager"]


class SsmContext(_AwsContext):
    """Parameters in AWS Systems Manager: `<context>:<name>`, as in `ssm:/ci/registry-token`."""

    type: Literal["aws-ssm"]


SecretContext = Annotated[FileContext | EnvContext | SecretsManagerContext | SsmContext, Field(discriminator="type")]


class SecretsConfig(ConfigModel):
    contexts: dict[Name, SecretContext] = {}


class Defaults(ConfigModel):
    resources: ResourceRequest | None = None


class Config(ConfigModel):
    """The whole file."""

    version: Literal[1]
    global_max_agents: Agents | None = None
    global_resource_cap: ResourceCap | None = None
    machine_pools: list[MachinePool] = []
    defaults: Defaults = Defaults()
    backoff: Backoff = Backoff()
    reaper: Reaper = Reaper()
    secrets: SecretsConfig = SecretsConfig()
    scalers: Annotated[list[Scaler], Field(min_length=1)]

    def scaler(self, name: str) -> Scaler | None:
        return next((s for s in self.scalers if s.name == name), None)

    def machine_pool(self, name: str) -> MachinePool | None:
        return next((pool for pool in self.machine_pools if pool.name == name), None)

    @property
    def outcome_retention(self) -> timedelta:
        """How long it is remembered how an agent ended: so long is a job that was served not served again."""
        seconds = self.reaper.outcome_retention_seconds
        if seconds is None:
            seconds = max(DAY_SECONDS, *(2 * scaler.spawn_timeout_seconds for scaler in self.scalers))
        return timedelta(seconds=seconds)
