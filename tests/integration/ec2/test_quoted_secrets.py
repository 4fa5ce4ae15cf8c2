"""An endpoint in EC2's place quotes the user data that it was sent: no part of a secret in it reaches anybody."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from hatchway.errors import SpawnError
from tests.contract.backend import fresh_agent_id, silent
from tests.support.fake_ec2.cloud import FakeEc2
from tests.support.fake_ec2.contract import INSTALLATION, Ec2Harness
from tests.support.fake_ec2.specs import ec2_scaler, ec2_spec

CLAIM = "hunter-of-two-rivers"
"""Without the looks of one: only whoever knows it can find it."""


@pytest.mark.scenario("S41")
@pytest.mark.parametrize("code", ["InvalidUserData.Malformed", "InsufficientInstanceCapacity"])
@pytest.mark.parametrize("spelled", ["{}", "env%3D{}", "base64"])
async def test_a_secret_across_the_cut_is_shown_to_nobody(
    harness: Ec2Harness, cloud: FakeEc2, spelled: str, code: str
) -> None:
    secret = base64.b64encode(CLAIM.encode()).decode()[:26] if spelled == "base64" else CLAIM
    said = secret if spelled == "base64" else spelled.format(CLAIM)
    agent_id = fresh_agent_id()
    scaler = ec2_scaler(cloud.url, ec2={"userData": "exec sleep 3600"})
    spec = ec2_spec(scaler, agent_id, {"KICI_AGENT_ID": agent_id, "KICI_SCALER_CLAIM_CODE": CLAIM}, INSTALLATION)
    spec = replace(spec, secret_values=frozenset({CLAIM}))

    for before in range(276, 304, 4):
        cloud.mischief.refuse("RunInstances", code, f"{'y ' * (before // 2)}{said} is no user data")
        with pytest.raises(SpawnError, match="y y") as raised:
            await harness.backend.spawn(spec, silent)

        assert secret[:8] not in str(raised.value)
