"""What two keys of a configuration say about each other, and what would only fail once a job is there.

Each check is a generator of (path, sentence). Paths are relative to the scaler, or to the file for `check_together`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from hatchway.agent_env import AGENT_COMMAND, agent_command_objection, label_set_objection
from hatchway.config.backend_checks import check_backend
from hatchway.config.capacity_checks import Surroundings, check_capacity, check_pools, check_windows
from hatchway.config.document import Path_
from hatchway.config.event_checks import check_targets
from hatchway.config.schema import Config, LabelSet, Scaler, SecretsConfig, SecretsManagerContext, SsmContext
from hatchway.errors import InvalidReference, SecretError
from hatchway.labels import RESERVED_PREFIX, fold, fold_all, gates, injected
from hatchway.model import EnvSecret
from hatchway.registry.reference import parse_registry_host
from hatchway.secrets.policy import Purpose, permitted
from hatchway.urls import endpoint_problems

Problem = tuple[Path_, str]

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9a-fA-F:]+")
_REGION = re.compile(r"[a-z]{2,4}(?:-[a-z]+)+-[0-9]{1,2}")


def check_config(config: Config) -> Iterator[Problem]:
    """Every check, over a whole configuration; paths are from its top. For content that stands in no file."""
    scalers = list(enumerate(config.scalers))
    surroundings = Surroundings.of(config)
    yield from check_secrets(config.secrets)
    yield from check_pools(list(enumerate(config.machine_pools)))
    yield from check_windows(config.backoff, config.reaper, scalers)
    for index, scaler in scalers:
        for path, message in (*check_scaler(scaler, config.secrets), *check_capacity(scaler, surroundings)):
            yield ("scalers", index, *path), message
    yield from check_together(scalers)


def check_scaler(scaler: Scaler, secrets: SecretsConfig | None) -> Iterator[Problem]:
    """One scaler by itself. `secrets` is None when that section could not be read: references are not checked then."""
    yield from _check_times(scaler)
    yield from _check_platform(scaler)
    for key, labels in (("mandatoryLabels", scaler.mandatory_labels), ("roles", scaler.roles)):
        yield from _check_printable(key, labels)
    yield from _check_orchestrator_url(scaler)
    for index, label_set in enumerate(scaler.label_sets):
        for path, message in (*_check_labels(scaler, label_set), *_check_env(label_set, secrets)):
            yield ("labelSets", index, *path), message
    yield from check_backend(scaler)
    yield from check_targets(scaler, secrets)
    if secrets is not None:
        yield from _check_registry_auth(scaler, secrets)


def check_secrets(secrets: SecretsConfig) -> Iterator[Problem]:
    """The secret contexts: absolute paths, registries that are hosts, and contexts that serve something."""
    for name, context in secrets.contexts.items():
        path: Path_ = ("secrets", "contexts", name)
        if context.type == "file" and not context.path.startswith("/"):
            yield (*path, "path"), "must be absolute: each worker runs in a directory of its own"
        if isinstance(context, SecretsManagerContext | SsmContext):
            for below, problem in _check_aws(context):
                yield (*path, below), problem
        for index, registry in enumerate(context.registries):
            try:
                parse_registry_host(registry)
            except InvalidReference as e:
                yield (*path, "registries", index), str(e)
        for index, host in enumerate(context.targets):
            if not _HOST.fullmatch(host):
                yield (
                    (*path, "targets", index),
                    "must be the host alone, as in hooks.example.com: no scheme and no port",
                )
        if context.env is False and not context.registries and not context.targets:
            yield path, "serves nothing: it lists no `registries`, and `env: false` keeps it out of environments"


def _check_aws(context: SecretsManagerContext | SsmContext) -> Iterator[tuple[str, str]]:
    if context.region is not None and not _REGION.fullmatch(context.region):
        yield "region", "is not an AWS region, as in eu-central-1"
    if context.endpoint_url is not None:
        for problem in endpoint_problems(context.endpoint_url, "secrets"):
            yield "endpointUrl", problem


def check_together(scalers: Sequence[tuple[int, Scaler]]) -> Iterator[Problem]:
    """What two scalers say about each other. `scalers` are those that could be read, with their index in the file."""
    names: dict[str, Scaler] = {}
    sets: dict[tuple[frozenset[str], ...], tuple[Scaler, LabelSet]] = {}
    for index, scaler in scalers:
        # Names are folded: they become the labels `kici:scaler:<name>`, which know no case.
        if names.setdefault(fold(scaler.name), scaler) is not scaler:
            yield ("scalers", index, "name"), "is the name of an earlier scaler too; names know no case"
        for place, label_set in enumerate(scaler.label_sets):
            same = (fold_all(label_set.labels), gates(scaler, label_set), fold_all(label_set.exclude_labels))
            owner, first = sets.setdefault(same, (scaler, label_set))
            if first is not label_set and not _told_apart(scaler, owner):
                yield (
                    ("scalers", index, "labelSets", place, "labels"),
                    f"are those of an earlier set of the scaler {owner.name}, with the same gates and excludes: "
                    "no job could tell the two apart",
                )


def _told_apart(one: Scaler, other: Scaler) -> bool:
    """Two scalers of different platforms or roles are told apart by the labels that those inject."""
    return one is not other and (one.platform, fold_all(one.roles)) != (other.platform, fold_all(other.roles))


def _check_times(scaler: Scaler) -> Iterator[Problem]:
    for field, key in (("claim_ttl_seconds", "claimTtlSeconds"), ("agent_token_ttl_seconds", "agentTokenTtlSeconds")):
        ttl: int = getattr(scaler, field)
        if ttl < scaler.adoption_timeout_seconds:
            where = key if field in scaler.model_fields_set else "adoptionTimeoutSeconds"
            yield (
                (where,),
                f"{key} ({ttl}) is shorter than adoptionTimeoutSeconds ({scaler.adoption_timeout_seconds}): an agent "
                "that boots slowly would come with spent credentials while its slot is still held",
            )


def _check_platform(scaler: Scaler) -> Iterator[Problem]:
    if scaler.platform is None:
        return
    system, slash, arch = scaler.platform.partition("/")
    if not (slash and system.isalnum() and arch.isalnum()):
        yield ("platform",), "must be <os>/<arch>, as in linux/amd64 or linux/arm64"


def _check_orchestrator_url(scaler: Scaler) -> Iterator[Problem]:
    if scaler.orchestrator_url is None:
        return
    for url in scaler.orchestrator_url.split(","):
        scheme, separator, host = url.strip().partition("://")
        if not separator or scheme not in ("http", "https") or not host.strip("/"):
            yield ("orchestratorUrl",), "must be the gateway's http:// or https:// address, or a comma list of them"
        elif "@" in host:
            yield ("orchestratorUrl",), "must not hold a user or password: every agent's environment shows it"


def _check_printable(key: str, labels: Sequence[str]) -> Iterator[Problem]:
    """A zero-width or control character comes with copied text: the label looks like one that no job can spell."""
    for index, label in enumerate(labels):
        if not label.isprintable():
            yield (key, index), "holds a character that cannot be seen or printed: type the label anew"


def _check_labels(scaler: Scaler, label_set: LabelSet) -> Iterator[Problem]:
    for index, label in enumerate(label_set.labels):
        if fold(label).startswith(RESERVED_PREFIX):
            yield (
                ("labels", index),
                f"starts with {RESERVED_PREFIX}, which is reserved: agents get those labels by what they are",
            )
        if "," in label:
            yield ("labels", index), "holds a comma, and agents are told their labels as a comma list"
    for key, labels in (("labels", label_set.labels), ("excludeLabels", label_set.exclude_labels)):
        yield from _check_printable(key, labels)
    known = fold_all(label_set.labels) | injected(scaler, "linux/amd64")
    for gate in sorted(gates(scaler, label_set)):
        # Without `platform` the architecture is the worker's, so any may turn out to be there.
        if gate not in known and not (scaler.platform is None and gate.startswith("kici:arch:")):
            yield (
                ("labels",),
                f"lack the gate label {gate}, without which no job is let in: a job carries only labels of the set",
            )
        if gate in fold_all(label_set.exclude_labels):
            yield ("excludeLabels",), f"hold the gate label {gate}, which every job must carry: no job can match"


def _check_env(label_set: LabelSet, secrets: SecretsConfig | None) -> Iterator[Problem]:
    for name, value in label_set.env.items():
        path: Path_ = ("env", name)
        objection = label_set_objection(name)
        if objection is not None:
            yield path, objection
        if isinstance(value, EnvSecret):
            if secrets is not None:
                yield from _check_reference(secrets, value.secret, path, Purpose.env)
        elif name == AGENT_COMMAND and (objection := agent_command_objection(value)) is not None:
            yield path, objection


def _check_registry_auth(scaler: Scaler, secrets: SecretsConfig) -> Iterator[Problem]:
    hosts: dict[str, int] = {}
    for index, auth in enumerate(scaler.registry_auth):
        path: Path_ = ("registryAuth", index)
        try:
            host = parse_registry_host(auth.registry)
        except InvalidReference as e:
            yield (*path, "registry"), str(e)
            continue
        first = hosts.setdefault(host.lower(), index)
        if first != index:
            yield (*path, "registry"), f"is that of registryAuth[{first}] too: only the first would ever be used"
        references: Mapping[str, str | None] = {
            "usernameSecret": auth.username_secret if auth.username is None else None,
            "tokenSecret": auth.token_secret,
        }
        for key, reference in references.items():
            if reference is not None:
                yield from _check_reference(secrets, reference, (*path, key), Purpose.registry(host))


def _check_reference(secrets: SecretsConfig, reference: str, path: Path_, purpose: Purpose) -> Iterator[Problem]:
    try:
        permitted(secrets.contexts, reference, field="", purpose=purpose)
    except SecretError as e:
        yield path, str(e).removeprefix(": ")
