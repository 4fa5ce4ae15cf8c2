"""A cloud of its own for each test, and AWS credentials that no AWS knows."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from hatchway.backends import ec2
from tests.support.fake_ec2.cloud import FakeEc2, running_ec2
from tests.support.fake_ec2.contract import Ec2Harness
from tests.support.fake_ec2.policy import allows, authorizations, documented_policy
from tests.support.fake_ec2.specs import QUICK, ec2_scaler
from tests.support.namespaces import Namespaces
from tests.support.stack import Stack, running_stack


@pytest.fixture(autouse=True)
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of whoever runs the tests either."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def cloud() -> Iterator[FakeEc2]:
    """Everything is shown at once, until a test says otherwise; instances boot in a twentieth of a second.

    After each test its calls are held to the policy of docs/aws.md.
    """
    with running_ec2() as cloud:
        yield cloud
        tags = {machine.id: machine.tags for machine in cloud.machines.values()}
        known = {value for of in tags.values() for key, value in of.items() if key == "hatchway.installation"}
    # Whatever a test makes the backend do, it needs no more than the policy that operators are told to give it.
    policies = [documented_policy(installation) for installation in known]
    for call in cloud.log if policies else ():
        for asked in authorizations(call, tags):
            assert any(allows(policy, asked) for policy in policies), asked


@pytest.fixture
async def harness(cloud: FakeEc2) -> AsyncIterator[Ec2Harness]:
    harness = Ec2Harness(cloud)
    yield harness
    await harness.close()


@pytest.fixture
def stack_of(
    namespaces: Namespaces, database_url: str, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., AbstractAsyncContextManager[Stack]]:  # fmt: skip
    """Runs everything, with one ec2 scaler whose agents run `command`."""
    monkeypatch.setattr(ec2, "PACE", QUICK)

    @asynccontextmanager
    async def run(*command: str, **keys: Any) -> AsyncIterator[Stack]:
        env = {"HATCHWAY_AGENT_COMMAND": json.dumps(list(command))} if command else {}
        keys["labelSet"] = {"env": env, **keys.get("labelSet", {})}
        config = {"version": 1, "scalers": [ec2_scaler(cloud.url, **keys)]}
        async with running_stack(namespaces, database_url, config) as stack:
            yield stack

    return run
