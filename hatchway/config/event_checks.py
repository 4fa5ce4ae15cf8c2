"""What a scaler of the type `event` needs, and what its targets must not be."""

from __future__ import annotations

from collections.abc import Iterator

from hatchway.backends.event_addresses import parse_networks
from hatchway.backends.event_targets import (
    EventBridgeTarget,
    HttpsTarget,
    SnsTarget,
    SqsTarget,
    Target,
    TargetError,
    TemporalTarget,
    parse_target,
)
from hatchway.config.document import Path_
from hatchway.config.event_schema import ProvisioningTarget
from hatchway.config.schema import Scaler, ScalerType, SecretsConfig
from hatchway.errors import SecretError
from hatchway.events import ReservedNameError, refuse_reserved
from hatchway.sealed_claims import ClaimKeyError, parse_claim_key
from hatchway.secrets.policy import Purpose, permitted
from hatchway.urls import endpoint_problems, is_host

Problem = tuple[Path_, str]

_ONLY_FOR: dict[str, tuple[str, type[Target] | tuple[type[Target], ...], str]] = {
    "signing_secret": ("signingSecret", HttpsTarget, "https:"),
    "allow_addresses": ("allowAddresses", HttpsTarget, "https:"),
    "ca_file": ("caFile", (HttpsTarget, TemporalTarget), "https: or temporal:"),
    "address": ("address", TemporalTarget, "temporal:"),
    "tls": ("tls", TemporalTarget, "temporal:"),
    "api_key_secret": ("apiKeySecret", TemporalTarget, "temporal:"),
    "region": ("region", (SqsTarget, EventBridgeTarget), "sqs: or eventbridge:"),
    "endpoint_url": ("endpointUrl", (SqsTarget, SnsTarget, EventBridgeTarget), "sqs:, sns: or eventbridge:"),
}


def check_targets(scaler: Scaler, secrets: SecretsConfig | None) -> Iterator[Problem]:
    """The targets of one scaler, and the rest of it where they matter. Paths are relative to the scaler."""
    try:
        refuse_reserved(scaler.name)
    except ReservedNameError as e:
        yield ("name",), str(e)
    if scaler.type is not ScalerType.EVENT:
        if "provisioning_targets" in scaler.model_fields_set:
            yield ("provisioningTargets",), "belongs to an event scaler"
        return
    if not scaler.provisioning_targets:
        yield ("provisioningTargets",), "is required: it says where the events go"
    for index, label_set in enumerate(scaler.label_sets):
        if label_set.env:
            yield (
                ("labelSets", index, "env"),
                "cannot be set for an event scaler: events carry no environment, the receiver sets it",
            )
    for index, settings in enumerate(scaler.provisioning_targets):
        for path, problem in _check_target(settings, secrets):
            yield ("provisioningTargets", index, *path), problem


def _check_target(settings: ProvisioningTarget, secrets: SecretsConfig | None) -> Iterator[Problem]:
    targets: list[Target] = []
    for key, text in (("scaleUp", settings.scale_up), ("scaleDown", settings.scale_down)):
        if text is not None:
            try:
                targets.append(parse_target(text))
            except TargetError as e:
                yield (key,), str(e)
    if len(targets) < 1 + (settings.scale_down is not None):
        return
    yield from _check_keys(settings, targets)
    if any(isinstance(target, TemporalTarget) for target in targets) or settings.claim_key is not None:
        yield from _check_claim_key(settings)
    if secrets is not None:
        yield from _check_references(settings, targets, secrets)


def _check_keys(settings: ProvisioningTarget, targets: list[Target]) -> Iterator[Problem]:
    """Keys that mean nothing to these targets, and those that cannot be right."""
    for field, (key, kinds, words) in _ONLY_FOR.items():
        if field in settings.model_fields_set and not any(isinstance(target, kinds) for target in targets):
            yield (key,), f"is for {words} targets only"
    try:
        parse_networks(settings.allow_addresses)
    except ValueError as e:
        yield ("allowAddresses",), f"holds an entry that {e}"
    if settings.ca_file is not None and not settings.ca_file.startswith("/"):
        yield ("caFile",), "must be absolute: each worker runs in a directory of its own"
    if settings.address is not None and not _is_address(settings.address):
        yield ("address",), "must be HOST:PORT of the Temporal server's frontend"
    if settings.address is None:
        for field, key in (("tls", "tls"), ("api_key_secret", "apiKeySecret")):
            if getattr(settings, field) is not None:
                yield (key,), "needs an `address`: without one, Hatchway's own connection to its server is used"
    if settings.api_key_secret is not None and settings.tls is False:
        yield ("tls",), "must not be false with an `apiKeySecret`, which would cross the network in the clear"
    if settings.endpoint_url is not None:
        for problem in endpoint_problems(settings.endpoint_url, "claim codes"):
            yield ("endpointUrl",), problem


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    whole = port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535
    return whole and is_host(host[1:-1] if bracketed else host, bracketed=bracketed)


def _check_claim_key(settings: ProvisioningTarget) -> Iterator[Problem]:
    if settings.claim_key is None:
        yield (
            ("claimKey",),
            "is required for a temporal: target, since a claim code must not lie in a workflow's history in the clear: "
            "`hatchway claim-keys` makes a pair, the receiver keeps the private one",
        )
        return
    try:
        parse_claim_key(settings.claim_key)
    except ClaimKeyError as e:
        yield ("claimKey",), str(e)


def _check_references(settings: ProvisioningTarget, targets: list[Target], secrets: SecretsConfig) -> Iterator[Problem]:
    hosts = [target.host for target in targets if isinstance(target, HttpsTarget)]
    if hosts and settings.signing_secret is None:
        yield ("signingSecret",), "is required for an https: target: the receiver knows Hatchway by the signature"
    for host in hosts:
        if settings.signing_secret is not None:
            yield from _check_reference(secrets, settings.signing_secret, "signingSecret", host)
    if settings.api_key_secret is not None and settings.address is not None:
        yield from _check_reference(secrets, settings.api_key_secret, "apiKeySecret", settings.host)


def _check_reference(secrets: SecretsConfig, reference: str, key: str, host: str) -> Iterator[Problem]:
    try:
        permitted(secrets.contexts, reference, field="", purpose=Purpose.target(host))
    except SecretError as e:
        yield (key,), str(e).removeprefix(": ")
