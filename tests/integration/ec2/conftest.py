"""A cloud of its own for each test, and AWS credentials that no AWS knows."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.fake_ec2.cloud import FakeEc2, running_ec2
from tests.support.fake_ec2.contract import Ec2Harness


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
    """Everything is shown at once, until a test says otherwise; instances boot in a twentieth of a second."""
    with running_ec2() as cloud:
        yield cloud


@pytest.fixture
async def harness(cloud: FakeEc2) -> AsyncIterator[Ec2Harness]:
    harness = Ec2Harness(cloud)
    yield harness
    await harness.close()
