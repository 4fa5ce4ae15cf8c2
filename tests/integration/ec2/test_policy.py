"""The policy of docs/aws.md is enough for every call, and nothing of it is too much."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hatchway.model import ScaleDownReason
from tests.contract.backend import (
    CLAIM,
    Behaviour,
    environment_for,
    exit_of,
    facts_for,
    fresh_agent_id,
    owned_ids,
    silent,
)
from tests.support.fake_ec2.cloud import FakeEc2
from tests.support.fake_ec2.contract import INSTALLATION, SCRIPTS, Ec2Harness
from tests.support.fake_ec2.policy import ROLE, Asked, allows, authorizations, documented_policy
from tests.support.fake_ec2.specs import ec2_scaler, ec2_spec

OFFERS = [{"instanceType": "m7i.large", "spot": True}, {"instanceType": "m7i.large"}]


@pytest.fixture
async def asked(harness: Ec2Harness, cloud: FakeEc2) -> list[Asked]:
    """Everything that IAM is asked when a backend does all that it ever does."""
    backend, agent_id, other = harness.backend, fresh_agent_id(), fresh_agent_id()
    ec2 = {"userData": SCRIPTS[Behaviour.EXITS], "offers": OFFERS, "instanceProfile": ROLE}
    scaler = ec2_scaler(cloud.url, ec2=ec2)
    spec = ec2_spec(scaler, agent_id, environment_for(agent_id), INSTALLATION, secret_values=frozenset({CLAIM}))
    cloud.mischief.short_of = {"m7i.large spot"}
    await backend.spawn(spec, silent)
    await exit_of(backend, agent_id)
    await backend.logs(agent_id)
    await backend.spawn(harness.spec(other, Behaviour.RUNS, environment_for(other)), silent)
    assert other in await owned_ids(backend)
    assert await backend.find(other) is not None
    await backend.destroy(other, facts_for(backend), ScaleDownReason.SHUTDOWN)
    tags = {machine.id: machine.tags for machine in cloud.machines.values()}
    return [one for call in cloud.log for one in authorizations(call, tags)]


def test_each_call_is_allowed(asked: list[Asked]) -> None:
    policy = documented_policy(INSTALLATION)

    assert [one for one in asked if not allows(policy, one)] == []


def test_without_any_one_action_something_is_refused(asked: list[Asked]) -> None:
    policy = documented_policy(INSTALLATION)

    for number, statement in enumerate(policy["Statement"]):
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        for action in actions:
            less: dict[str, Any] = copy.deepcopy(policy)
            less["Statement"][number]["Action"] = [one for one in actions if one != action]
            refused = {one.action for one in asked if not allows(less, one)}
            assert refused == {action}, f"{statement['Sid']} without {action}"


def test_the_resources_are_all_needed(asked: list[Asked]) -> None:
    policy = documented_policy(INSTALLATION)

    for number, statement in enumerate(policy["Statement"]):
        resources = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
        for resource in resources:
            less: dict[str, Any] = copy.deepcopy(policy)
            less["Statement"][number]["Resource"] = [one for one in resources if one != resource]
            assert [one for one in asked if not allows(less, one)] != [], f"{statement['Sid']} without {resource}"


OTHERS = {
    "an instance of another installation": Asked(
        "ec2:TerminateInstances", "arn:aws:ec2:eu-central-1:1:instance/i-1",
        {"aws:ResourceTag/hatchway.installation": "somebody-elses"},
    ),
    "an instance without tags": Asked("ec2:TerminateInstances", "arn:aws:ec2:eu-central-1:1:instance/i-1"),
    "the console of another installation's": Asked("ec2:GetConsoleOutput", "arn:aws:ec2:eu-central-1:1:instance/i-1"),
    "a launch that bears no tags": Asked("ec2:RunInstances", "arn:aws:ec2:eu-central-1:1:instance/*"),
    "tags on what is there already": Asked("ec2:CreateTags", "arn:aws:ec2:eu-central-1:1:instance/i-1"),
    "user data of others": Asked("ec2:DescribeInstanceAttribute", "arn:aws:ec2:eu-central-1:1:instance/i-1"),
    "another role": Asked(
        "iam:PassRole", "arn:aws:iam::1:role/admin", {"iam:PassedToService": "ec2.amazonaws.com"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_of_others_is_allowed(name: str) -> None:
    assert not allows(documented_policy(INSTALLATION), OTHERS[name])
