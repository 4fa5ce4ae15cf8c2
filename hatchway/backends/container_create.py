"""How an agent's container is made: its name, its labels, its environment and its walls.

The claim code is in the container's environment, so `docker inspect` shows it to whoever may open the engine's socket.
Such a person is root there already. The code is good for one agent, once, and dies with the adoption deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from docker.types import LogConfig

from hatchway.backends.base import SpawnSpec
from hatchway.backends.container_engine import Client, EngineFacts
from hatchway.backends.container_network import INSTALLATION, Attachment
from hatchway.backends.container_policy import HOST_NAME
from hatchway.errors import PermanentSpawnError, SpawnCode

AGENT_ID = "kici-agent-id"
IMAGE = "hatchway.image"
"""The name that was asked for: the container itself is made from an id, which tells a person nothing."""
STOP_GRACE = "hatchway.stop-grace-seconds"
SECRET_ENV = "hatchway.secret-env"  # noqa: S105 - names of variables, no value
CLAIM_CODE = "KICI_SCALER_CLAIM_CODE"
ORCHESTRATOR_URL = "KICI_ORCHESTRATOR_URL"

PIDS = 4096
LOG_BYTES = "10m"
"""Per container, in one file: a job that prints without end must not fill the engine's disk."""

_SOCKET = "/var/run/docker.sock"


def container_name(agent_id: str) -> str:
    """One name per agent: the engine itself refuses the second container of a spawn that ran twice."""
    return f"hatchway-{agent_id}"


STOPPING = "hatchway-stopping-"


def stopping_name(agent_id: str) -> str:
    """What a container is called from the first step of its teardown on.

    So every watch of this engine, in whatever process, tells an end that we brought about from one that befell it.
    """
    return f"{STOPPING}{agent_id}"


def is_stopping(name: str) -> bool:
    """Whether a container of that name is being torn down. Engines put a slash before some names."""
    return name.lstrip("/").startswith(STOPPING)


def is_named_for(agent_id: str, names: Iterable[str]) -> bool:
    """Whether a container with these names is called as the agent's own is.

    One without any name is being removed, and counts: engines give a name away before the container is gone.
    """
    own = (container_name(agent_id), stopping_name(agent_id))
    given = [name.lstrip("/") for name in names]
    return not given or any(name in own for name in given)


def container_labels(spec: SpawnSpec) -> dict[str, str]:
    """What finds the container again, and what a teardown needs to know without any config."""
    labels = {
        "kici-managed": "true",
        "kici-scaler-name": spec.scaler.name,
        AGENT_ID: spec.agent_id,
        "kici-labels": ",".join(spec.labels),
        INSTALLATION: spec.installation_id,
        IMAGE: spec.image or "",
        STOP_GRACE: f"{spec.stop_grace.total_seconds():g}",
        SECRET_ENV: ",".join(sorted(_secret_names(spec))),
    }
    if spec.job_id is not None:
        labels["kici-bound-job-id"] = spec.job_id
    if spec.run_id is not None:
        labels["kici-run-id"] = spec.run_id
    return labels


def _secret_names(spec: SpawnSpec) -> set[str]:
    holds = {name for name, value in spec.env.items() if any(s and s in value for s in spec.secret_values)}
    return holds | ({CLAIM_CODE} & spec.env.keys())


def secret_values(container: Mapping[str, Any]) -> frozenset[str]:
    """The secret values of an inspected container: which they are is in a label, what they are in its environment.

    So a worker that was started after the container redacts its output like the one that made it.
    """
    names = (container["Config"].get("Labels") or {}).get(SECRET_ENV, "").split(",")
    env = dict(entry.partition("=")[::2] for entry in container["Config"].get("Env") or [])
    return frozenset(env[name] for name in names if env.get(name))


def stop_grace(labels: Mapping[str, str]) -> timedelta:
    """How long the agent may take to stop, as its spawn wrote it down; 30 s where somebody edited that."""
    try:
        return timedelta(seconds=max(0.0, float(labels[STOP_GRACE])))
    except (KeyError, ValueError, OverflowError):
        return timedelta(seconds=30)


def refuse_what_cannot_run(spec: SpawnSpec, installation_id: str, facts: EngineFacts) -> None:
    """Find, before anything is pulled, what could only fail later or run open. Raises PermanentSpawnError."""
    scaler, label_set = spec.scaler, spec.label_set
    problem = None
    if spec.installation_id != installation_id:
        problem = "this spawn is for another installation than this worker's; its container could never be found again"
    elif spec.image is None:
        problem = "there is no image: give the label set one, or allow the job's by `allowJobImage: true`"
    elif label_set.container_socket and scaler.allow_job_image:
        problem = "containerSocket together with allowJobImage would give any job's image root on the engine's machine"
    elif spec.mcpu is not None and facts.cpus and spec.mcpu > facts.cpus * 1000:
        # Docker refuses this at create; Podman takes it in silence, and the limit then means nothing.
        problem = f"{spec.mcpu / 1000:g} CPUs are asked for, and this engine has {facts.cpus}; change `resources`"
    elif _only_loopback(spec.env.get(ORCHESTRATOR_URL, "")):
        problem = (
            "the gateway's address is a loopback address, which inside a container is the container itself: set the "
            "scaler's orchestratorUrl to one that containers reach, such as http://host.docker.internal:8780, and let "
            "the gateway listen there"
        )
    if problem is not None:
        raise PermanentSpawnError(SpawnCode.INVALID_SPEC, problem)


def _only_loopback(urls: str) -> bool:
    hosts = [urlsplit(url.strip()).hostname or "" for url in urls.split(",") if url.strip()]
    return bool(hosts) and all(h.startswith("127.") or h in ("localhost", "::1") for h in hosts)


def create(
    client: Client,
    spec: SpawnSpec,
    image_id: str,
    command: list[str] | None,
    socket: str,
    attachment: Attachment | None,
) -> str:
    """Create the container and return its id. `command` None runs the image's own entrypoint.

    `image_id` and not a name: a tag that moves between the check and this call would run something unchecked.
    `attachment` None: the engine's default network.
    """
    made: dict[str, Any] = client.create_container(
        image_id,
        name=container_name(spec.agent_id),
        entrypoint=command,
        environment=dict(spec.env),
        labels=container_labels(spec),
        host_config=_walls(client, spec, socket, attachment),
        use_config_proxy=False,  # the SDK would copy the proxies, passwords included, of this user's docker config
    )
    return str(made["Id"])


def _walls(client: Client, spec: SpawnSpec, socket: str, attachment: Attachment | None) -> Any:
    limits: dict[str, int] = {}
    if spec.mcpu is not None:
        limits["nano_cpus"] = spec.mcpu * 1_000_000
    if spec.mem_bytes is not None:
        # Memory and swap together: without the second the limit would be twice what was asked for.
        limits |= {"mem_limit": spec.mem_bytes, "memswap_limit": spec.mem_bytes}
    return client.create_host_config(
        cap_drop=["ALL"],
        cap_add=list(spec.label_set.cap_add) or None,
        security_opt=["no-new-privileges:true"],
        init=True,
        pids_limit=PIDS,
        log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": LOG_BYTES, "max-file": "1"}),
        network_mode=attachment.network if attachment else None,
        dns=list(attachment.dns) or None if attachment else None,
        extra_hosts=dict(attachment.hosts) if attachment else {HOST_NAME: "host-gateway"},
        binds=[f"{socket}:{_SOCKET}"] if spec.label_set.container_socket else None,
        **limits,
    )


def socket_path(address: str) -> str:
    """Where the engine's own socket is on its machine, for `containerSocket`."""
    return address.removeprefix("unix://") if address.startswith("unix://") else _SOCKET
