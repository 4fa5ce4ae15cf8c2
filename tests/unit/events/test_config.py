"""Event scalers in a configuration: what is refused at load, each with its path; and what is kept of a target."""

from __future__ import annotations

from typing import Any

import pytest

from hatchway.config.checks import check_config
from hatchway.config.event_schema import ProvisioningTarget
from hatchway.config.schema import Config
from hatchway.config.versions import from_stored, to_stored
from hatchway.errors import SecretNotAllowed
from hatchway.sealed_claims import new_claim_keys
from hatchway.secrets.policy import Purpose, permitted

KEY = new_claim_keys()[1]
TEMPORAL = {"scaleUp": "temporal:customer/q/ScaleUp", "claimKey": KEY}
HTTPS = {"scaleUp": "https://hooks.example.com/x", "signingSecret": "hooks:key"}
SQS = "sqs:https://sqs.eu-west-1.amazonaws.com/1/q"
CONTEXTS = {
    "hooks": {"type": "env", "targets": ["hooks.example.com"]},
    "cloud": {"type": "env", "targets": ["acme.tmprl.cloud"]},
    "jobs": {"type": "env"},
}


def config_of(*targets: Any, contexts: dict[str, Any] | None = None, **scaler: Any) -> Config:
    return Config.model_validate(
        {
            "version": 1,
            "secrets": {"contexts": CONTEXTS if contexts is None else contexts},
            "scalers": [
                {
                    "name": "lab", "type": "event", "maxAgents": 1, "labelSets": [{"labels": ["linux"]}],
                    "provisioningTargets": list(targets), **scaler,
                }
            ],
        }
    )  # fmt: skip


def findings(config: Config) -> list[str]:
    return [f"{'.'.join(map(str, path))}: {message}" for path, message in check_config(config)]


@pytest.mark.parametrize(
    "targets",
    [
        [TEMPORAL],
        [{**TEMPORAL, "scaleDown": "temporal:customer/q/ScaleDown"}],
        [{**TEMPORAL, "address": "acme.tmprl.cloud:7233", "apiKeySecret": "cloud:key"}],
        [{**TEMPORAL, "address": "10.0.0.7:7233", "tls": True, "caFile": "/etc/ca.pem"}],
        [HTTPS],
        [
            {
                **HTTPS,
                "allowAddresses": ["10.0.0.0/8", "127.0.0.1", "fd12::/16"],
                "caFile": "/etc/ca.pem",
                "claimKey": KEY,
            }
        ],
        [SQS],
        [{"scaleUp": SQS, "scaleDown": "https://hooks.example.com/x", "signingSecret": "hooks:key"}],
        ["sns:arn:aws:sns:eu-west-1:123456789012:t", "eventbridge:ci", TEMPORAL],
    ],
)
def test_a_sound_target_is_taken(targets: list[Any]) -> None:
    config = config_of(*targets)

    assert findings(config) == []
    assert from_stored(to_stored(config).content) == config


REFUSED = {
    "none": ([], "provisioningTargets: is required"),
    "unreadable": (["ci"], "provisioningTargets.0.scaleUp: is none of"),
    "reserved": (["eventbridge:kici.x"], "provisioningTargets.0.scaleUp: names a bus that begins with kici."),
    "temporal without key": (["temporal:customer/q/ScaleUp"], "provisioningTargets.0.claimKey: is required"),
    "temporal down without key": (
        [{"scaleUp": SQS, "scaleDown": "temporal:customer/q/S"}], "provisioningTargets.0.claimKey: is required",
    ),
    "bad key": ([{**TEMPORAL, "claimKey": "hunter2!"}], "provisioningTargets.0.claimKey: claimKey is not base64"),
    "unsigned": ([{"scaleUp": HTTPS["scaleUp"]}], "provisioningTargets.0.signingSecret: is required"),
    "secret of jobs": ([{**HTTPS, "signingSecret": "jobs:key"}], "signingSecret: 'jobs:key' may not"),
    "secret of another host": ([{**HTTPS, "signingSecret": "cloud:key"}], "may not be used for hooks.example.com"),
    "unknown context": ([{**HTTPS, "signingSecret": "nobody:key"}], "no secret context 'nobody'"),
    "key of another server": (
        [{**TEMPORAL, "address": "elsewhere:7233", "apiKeySecret": "cloud:key"}], "may not be used for elsewhere",
    ),
    "key in the clear": (
        [{**TEMPORAL, "address": "acme.tmprl.cloud:7233", "apiKeySecret": "cloud:key", "tls": False}],
        "provisioningTargets.0.tls: must not be false",
    ),
    "tls of our own server": ([{**TEMPORAL, "tls": True}], "provisioningTargets.0.tls: needs an `address`"),
    "no address": ([{**TEMPORAL, "address": "https://x"}], "provisioningTargets.0.address: must be HOST:PORT"),
    "no network": ([{**HTTPS, "allowAddresses": ["hooks.internal"]}], "allowAddresses: holds an entry that is no IP"),
    "host bits": ([{**HTTPS, "allowAddresses": ["10.0.0.1/8"]}], "has bits set after its prefix"),
    "metadata": ([{**HTTPS, "allowAddresses": ["169.254.0.0/16"]}], "metadata addresses"),
    "everything": ([{**HTTPS, "allowAddresses": ["0.0.0.0/0"]}], "metadata addresses"),
    "relative file": ([{**HTTPS, "caFile": "ca.pem"}], "provisioningTargets.0.caFile: must be absolute"),
    "foreign key": ([{"scaleUp": SQS, "signingSecret": "hooks:key"}], "signingSecret: is for https: targets only"),
    "foreign region": ([{**HTTPS, "region": "eu-west-1"}], "region: is for sqs: or eventbridge: targets only"),
    "open endpoint": ([{"scaleUp": SQS, "endpointUrl": "http://aws.internal"}], "endpointUrl: must be https://"),
    "half an endpoint": ([{"scaleUp": SQS, "endpointUrl": "https://[::1"}], "endpointUrl: is no URL"),
    "an endpoint's port": ([{"scaleUp": SQS, "endpointUrl": "https://aws.internal:99999"}], "endpointUrl: is no URL"),
    "a number for an endpoint": ([{"scaleUp": SQS, "endpointUrl": "http://127.1"}], "endpointUrl: is no URL"),
    "an address of two": ([{**TEMPORAL, "address": "a b:7233"}], "provisioningTargets.0.address: must be HOST:PORT"),
    "a short address": ([{**TEMPORAL, "address": "127.1:7233"}], "provisioningTargets.0.address: must be HOST:PORT"),
    "half an address": ([{**TEMPORAL, "address": "[::1:7233"}], "provisioningTargets.0.address: must be HOST:PORT"),
    "no such port": ([{**TEMPORAL, "address": "a:99999"}], "provisioningTargets.0.address: must be HOST:PORT"),
}  # fmt: skip


@pytest.mark.parametrize(("targets", "words"), REFUSED.values(), ids=REFUSED)
def test_a_target_that_cannot_work_or_should_not_is_refused(targets: list[Any], words: str) -> None:
    found = findings(config_of(*targets))

    assert any(words in one for one in found), found
    assert "hunter2" not in str(found)


def test_an_event_scaler_takes_nothing_of_the_other_types_and_no_environment() -> None:
    found = findings(
        config_of(SQS, networkIsolation=False, labelSets=[{"labels": ["a"], "image": "b", "env": {"C": "d"}}])
    )

    assert any("networkIsolation: belongs to another type" in one for one in found)
    assert any("labelSets.0.image: belongs to another type" in one for one in found)
    assert any("labelSets.0.env: cannot be set for an event scaler" in one for one in found)


def test_a_scaler_may_not_pass_for_an_event_of_ours() -> None:
    assert any("name: begins with kici." in one for one in findings(config_of(SQS, name="kici.scaler")))


def test_what_stands_on_a_row_is_the_whole_target_and_no_secret() -> None:
    target = ProvisioningTarget.model_validate({**HTTPS, "allowAddresses": ["10.0.0.0/8"]})

    assert ProvisioningTarget.from_row(target.to_row()) == target
    assert ProvisioningTarget.from_row(SQS) == ProvisioningTarget(scale_up=SQS)
    assert target.down == target.scale_up


def test_a_context_for_targets_serves_neither_environments_nor_registries() -> None:
    contexts = config_of(SQS).secrets.contexts

    for purpose in (Purpose.env, Purpose.registry("hooks.example.com"), Purpose.target("elsewhere")):
        with pytest.raises(SecretNotAllowed):
            permitted(contexts, "hooks:key", field="f", purpose=purpose)
    assert permitted(contexts, "hooks:key", field="f", purpose=Purpose.target("HOOKS.example.com"))[1] == "key"
    with pytest.raises(SecretNotAllowed):
        permitted(contexts, "jobs:key", field="f", purpose=Purpose.target("hooks.example.com"))


@pytest.mark.parametrize("host", ["https://hooks.example.com", "hooks.example.com:443", "*", ""])
def test_a_context_names_hosts_alone(host: str) -> None:
    config = config_of(SQS, contexts={"hooks": {"type": "env", "targets": [host]}})

    assert any("secrets.contexts.hooks.targets.0: must be the host alone" in one for one in findings(config))
