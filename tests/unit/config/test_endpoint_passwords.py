"""A password in an address, with or without a user, is refused wherever a configuration has an address of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hatchway.config.checks import check_config
from hatchway.config.document import spell
from hatchway.config.schema import Config
from tests.support.fake_ec2.specs import ec2_scaler

USERS = ["user:marker-pw@", ":marker-pw@", "user@", "@", ":@"]
METAL: dict[str, Any] = {"name": "m", "type": "bare-metal", "maxAgents": 1, "labelSets": [{"labels": ["linux"]}]}
PLAIN = "https://aws.example.com"


def secret_context(url: str) -> dict[str, Any]:
    context = {"type": "aws-secrets-manager", "region": "eu-central-1", "endpointUrl": url, "targets": ["a.example"]}
    return {"scalers": [METAL], "secrets": {"contexts": {"sm": context}}}


def instances(url: str) -> dict[str, Any]:
    return {"scalers": [ec2_scaler(url)]}


def orchestrator(url: str) -> dict[str, Any]:
    return {"scalers": [{**METAL, "orchestratorUrl": url}]}


def target(scale_up: str, **settings: Any) -> dict[str, Any]:
    return {"scalers": [{**METAL, "type": "event", "provisioningTargets": [{"scaleUp": scale_up, **settings}]}]}


PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "secrets.contexts.sm.endpointUrl": secret_context,
    "scalers[0].ec2.endpointUrl": instances,
    "scalers[0].orchestratorUrl": orchestrator,
    "scalers[0].provisioningTargets[0].endpointUrl": lambda url: target(
        "sns:arn:aws:sns:eu-central-1:123456789012:topic", endpointUrl=url
    ),
    "scalers[0].provisioningTargets[0].scaleUp": lambda url: target(url, signingSecret="hooks:key"),
}


def found(settings: dict[str, Any]) -> dict[str, str]:
    config = Config.model_validate({"version": 1, **settings})
    return {spell(path): message for path, message in check_config(config)}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("user", USERS)
def test_an_address_with_a_user_or_a_password_is_refused_and_not_repeated(user: str, place: str) -> None:
    said = found(PLACES[place](PLAIN.replace("//", f"//{user}")))

    assert place in said
    assert "marker-pw" not in str(said)


@pytest.mark.parametrize("place", PLACES)
def test_the_same_address_without_is_taken(place: str) -> None:
    assert place not in found(PLACES[place](PLAIN))
