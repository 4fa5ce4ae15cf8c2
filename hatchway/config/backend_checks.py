"""What each type of scaler needs, and which keys belong to another type."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from hatchway.addresses import AddressError, parse_opening
from hatchway.config.document import Path_
from hatchway.config.ec2_checks import check_ec2
from hatchway.config.schema import LabelSet, NetworkPolicy, Scaler, ScalerType
from hatchway.errors import InvalidReference
from hatchway.registry.reference import parse_reference

NOT_BUILT_TYPES = {
    "firecracker": "microVMs are not built yet; use container or bare-metal",
}

_CONTAINER_ONLY = {
    "host": "host",
    "network_isolation": "networkIsolation",
    "allow_job_image": "allowJobImage",
    "registry_auth": "registryAuth",
    "use_host_docker_config": "useHostDockerConfig",
    "ecr_for": "ecrFor",
}
_BARE_METAL_ONLY = {"enforce_cgroups": "enforceCgroups"}
_CONTAINER_ONLY_IN_SET = {
    "image": "image",
    "pull_policy": "pullPolicy",
    "container_socket": "containerSocket",
    "cap_add": "capAdd",
    "network_policy": "networkPolicy",
    "agent": "agent",
}
_BARE_METAL_ONLY_IN_SET = {
    "command": "command",
    "user": "user",
    "run_as_root": "runAsRoot",
    "working_directory": "workingDirectory",
}


def check_backend(scaler: Scaler) -> Iterator[tuple[Path_, str]]:
    """What this scaler's type asks of it. Paths are relative to the scaler."""
    if scaler.type is ScalerType.CONTAINER:
        yield from _check_container(scaler)
    elif scaler.type is ScalerType.BARE_METAL:
        yield from _check_bare_metal(scaler)
    elif scaler.type is ScalerType.EC2:
        yield from _check_foreign(scaler, "an ec2 scaler", _CONTAINER_ONLY | _BARE_METAL_ONLY)
        yield from check_ec2(scaler)
    else:
        yield from _check_foreign(scaler, "an event scaler", _CONTAINER_ONLY | _BARE_METAL_ONLY)
    if scaler.type is not ScalerType.EC2:
        yield from _check_no_ec2(scaler)


def _check_foreign(scaler: Scaler, own: str, keys: dict[str, str]) -> Iterator[tuple[Path_, str]]:
    """Keys of the types that mean nothing to this one."""
    for field, key in keys.items():
        if field in scaler.model_fields_set:
            yield (key,), f"belongs to another type of scaler; it means nothing to {own}"
    for index, label_set in enumerate(scaler.label_sets):
        for key in _set_keys(label_set, _CONTAINER_ONLY_IN_SET | _BARE_METAL_ONLY_IN_SET):
            yield ("labelSets", index, key), f"belongs to another type of scaler; it means nothing to {own}"


def _check_no_ec2(scaler: Scaler) -> Iterator[tuple[Path_, str]]:
    if scaler.ec2 is not None:
        yield ("ec2",), "belongs to an ec2 scaler"
    for index, label_set in enumerate(scaler.label_sets):
        if label_set.ec2 is not None:
            yield ("labelSets", index, "ec2"), "belongs to an ec2 scaler"


def _check_container(scaler: Scaler) -> Iterator[tuple[Path_, str]]:
    for field, key in _BARE_METAL_ONLY.items():
        if field in scaler.model_fields_set:
            yield (key,), "belongs to a bare-metal scaler; limits always bind a container"
    if scaler.network_isolation and not _engine_is_here(scaler.host):
        yield (
            ("host",),
            "names an engine on another machine, whose firewall no worker can change from outside: run a worker there "
            "and leave `host` out, or say `networkIsolation: false` to run agents on that engine's own network",
        )
    for index, label_set in enumerate(scaler.label_sets):
        path: Path_ = ("labelSets", index)
        for key in _set_keys(label_set, _BARE_METAL_ONLY_IN_SET):
            yield (*path, key), "belongs to a bare-metal scaler; a container runs as its image says"
        if label_set.image is not None:
            try:
                parse_reference(label_set.image)
            except InvalidReference as e:
                yield (*path, "image"), str(e)
        elif not scaler.allow_job_image:
            yield (*path, "image"), "is required, since the scaler does not say `allowJobImage: true`"
        for below, problem in _check_policy(scaler, label_set.network_policy):
            yield (*path, "networkPolicy", *below), problem
        if label_set.container_socket and scaler.allow_job_image:
            yield (
                (*path, "containerSocket"),
                "cannot go with allowJobImage: an image of the job's choice would hold the engine's socket, "
                "which is root on its host",
            )


def _engine_is_here(host: str | None) -> bool:
    """Whether `host` may be this machine's engine. A socket always is; an address only where it is loopback's."""
    if host is None or host.startswith(("unix://", "/")):
        return True
    name = urlsplit(host).hostname or ""
    return name == "localhost" or name.startswith("127.")


def _check_policy(scaler: Scaler, policy: NetworkPolicy | None) -> Iterator[tuple[Path_, str]]:
    """What stands below `networkPolicy`."""
    if policy is None:
        return
    if not scaler.network_isolation:
        yield (), "means nothing with `networkIsolation: false`: remove one of the two"
    if policy.deny_all and (policy.allowlist is not None or policy.host_access):
        yield ("denyAll",), "leaves the gateway only, so it cannot go with `allowlist` or `hostAccess`"
    for index, entry in enumerate(policy.allowlist or ()):
        try:
            parse_opening(entry)
        except AddressError as e:
            yield ("allowlist", index), str(e)


def _check_bare_metal(scaler: Scaler) -> Iterator[tuple[Path_, str]]:
    for field, key in _CONTAINER_ONLY.items():
        if field in scaler.model_fields_set:
            yield (key,), "belongs to a container scaler"
    for index, label_set in enumerate(scaler.label_sets):
        path: Path_ = ("labelSets", index)
        for key in _set_keys(label_set, _CONTAINER_ONLY_IN_SET):
            yield (*path, key), "belongs to a container scaler; a bare-metal agent is a process of the host"
        if label_set.run_as_root and label_set.user is not None:
            yield (*path, "user"), "cannot go with runAsRoot: say which of the two the agent runs as"
        if label_set.command is not None and (not label_set.command or not label_set.command[0]):
            yield (*path, "command"), "is empty; leave it out to run the reference agent"
        if label_set.working_directory is not None and not label_set.working_directory.startswith("/"):
            yield (*path, "workingDirectory"), "must be absolute"


def _set_keys(label_set: LabelSet, keys: dict[str, str]) -> Iterator[str]:
    return (key for field, key in keys.items() if field in label_set.model_fields_set)
