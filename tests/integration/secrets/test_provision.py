"""AWS that throttles or is away for a while refuses no job: its provision waits, and goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from hatchway import aws
from hatchway.errors import ErrorType
from hatchway.model import ProvisionState
from tests.support.aws import REGION, Refusing
from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces
from tests.support.stack import laptop

S = ProvisionState
THROTTLED = aws.ATTEMPTS + 1
"""One look at the secret is spent, and the next begins with a refusal."""


@pytest.fixture
def busy() -> Iterator[Refusing]:
    answer = json.dumps({"SecretString": "value-of-the-secret"})
    with Refusing(400, "ThrottlingException", times=THROTTLED, then=answer) as server:
        yield server


@pytest.fixture
async def lab(namespaces: Namespaces, database_url: str, busy: Refusing) -> AsyncIterator[Lab]:
    place = {"type": "aws-secrets-manager", "region": REGION, "endpointUrl": busy.endpoint}
    contexts = {"registry": {**place, "registries": ["ghcr.io"]}, "jobs": place}
    async with AsyncExitStack() as exits:
        yield await exits.enter_async_context(
            running_lab(namespaces, database_url, {**laptop(), "secrets": {"contexts": contexts}})
        )


@pytest.mark.scenario("S38")
@pytest.mark.parametrize(
    "container",
    [
        {"image": "ghcr.io/team/app", "auth": {"tokenSecret": "registry:ci"}},
        {"image": "ghcr.io/team/app", "env": {"VALUE": {"secret": "jobs:ci"}}},
    ],
    ids=["checked before the spawn", "needed by the spawn"],
)
async def test_a_provision_outlives_a_secret_store_that_is_busy(
    lab: Lab, busy: Refusing, container: dict[str, Any]
) -> None:
    started = await lab.provision(container=container)

    await lab.reaches(started, S.AWAITING_ADOPTION)

    assert busy.asked > THROTTLED
    assert lab.cloud.created(started.agent_id) == 1


async def test_a_secret_that_aws_refuses_fails_the_provision_at_once(lab: Lab, busy: Refusing) -> None:
    refused = await lab.failure(
        await lab.provision(
            container={"image": "ghcr.io/team/app", "auth": {"tokenSecret": "registry:arn:aws:secretsmanager:x"}}
        )
    )

    assert refused.error_type == ErrorType.AUTH_REFUSED
    assert "container.auth.tokenSecret" in str(refused)
    assert busy.asked == 0
