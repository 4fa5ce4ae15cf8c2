"""The shape of the requests, on moto: another reading of EC2's protocol than ours.

Moto honours no client token, knows no late or slow state and grants everything, so only shapes are looked at here.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from typing import Any

import boto3
import pytest

from hatchway.backends.base import Gone
from hatchway.backends.ec2 import Ec2Backend
from hatchway.backends.ec2_user_data import printed
from hatchway.config.schema import Scaler
from hatchway.model import ComputeRef, ScaleDownReason
from tests.contract.backend import environment_for, facts_for, fresh_agent_id, silent
from tests.support.aws import aws_stand_in
from tests.support.fake_ec2.specs import QUICK, REGION, ec2_scaler, ec2_spec

INSTALLATION = "installation-under-test"


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    with aws_stand_in() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def account(aws: str) -> dict[str, Any]:
    """What a label set names, of moto's account: the ids are its own. It wants to know a root volume's size, which EC2
    takes from the image."""
    ec2 = _client(aws)
    image = ec2.describe_images(
        Filters=[
            {"Name": "architecture", "Values": ["x86_64"]}, {"Name": "root-device-type", "Values": ["ebs"]},
            {"Name": "virtualization-type", "Values": ["hvm"]},
        ]
    )["Images"]  # fmt: skip
    ami = next(one["ImageId"] for one in image if one.get("Platform", "") != "windows" and one.get("RootDeviceName"))
    subnet = ec2.describe_subnets()["Subnets"][0]
    group = ec2.describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [subnet["VpcId"]]}])["SecurityGroups"][0]
    return {
        "ami": ami, "subnets": [subnet["SubnetId"]], "securityGroups": [group["GroupId"]], "rootVolume": {"sizeGib": 20}
    }  # fmt: skip


def _client(aws: str) -> Any:
    return boto3.client(
        "ec2", region_name=REGION, endpoint_url=aws, aws_access_key_id="testing", aws_secret_access_key="testing"
    )


@pytest.fixture
async def backend(aws: str) -> AsyncIterator[Ec2Backend]:
    backend = await Ec2Backend.connect(Scaler.model_validate(ec2_scaler(aws)), INSTALLATION, QUICK)
    yield backend
    await backend.close()


async def _spawned(backend: Ec2Backend, aws: str, agent_id: str, ec2: dict[str, Any]) -> ComputeRef:
    scaler = ec2_scaler(aws, ec2=ec2)
    return await backend.spawn(ec2_spec(scaler, agent_id, environment_for(agent_id), INSTALLATION), silent)


@pytest.mark.parametrize("spot", [True, False])
async def test_an_instance_is_launched_seen_and_terminated(
    backend: Ec2Backend, aws: str, account: dict[str, Any], spot: bool
) -> None:
    agent_id = fresh_agent_id()
    offer = {"instanceType": "m5.large", "spot": spot, **({"maxPrice": "0.05"} if spot else {})}

    wanted = {**account, "offers": [offer], "tags": {"a": "b"}}
    ref = await _spawned(backend, aws, agent_id, wanted)
    found, owned = await backend.find(agent_id), [one async for one in backend.owned()]
    (seen,) = _client(aws).describe_instances(InstanceIds=[ref.ref])["Reservations"][0]["Instances"]
    tags = {tag["Key"]: tag["Value"] for tag in seen["Tags"]}
    script = _client(aws).describe_instance_attribute(InstanceId=ref.ref, Attribute="userData")["UserData"]["Value"]
    gone = await backend.destroy(agent_id, facts_for(backend), ScaleDownReason.SHUTDOWN)

    assert found == ref
    assert [one.ref for one in owned] == [ref]
    assert owned[0].created_at is not None
    assert (tags["kici-agent-id"], tags["hatchway.installation"], tags["a"]) == (agent_id, INSTALLATION, "b")
    assert seen["InstanceType"] == "m5.large"
    assert seen["MetadataOptions"]["HttpTokens"] == "required"
    assert seen["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert "KeyName" not in seen or not seen["KeyName"]
    assert script  # base64 once, and not twice
    assert gone == Gone()
    assert await backend.find(agent_id) is None


async def test_the_user_data_arrives_as_it_was_written(backend: Ec2Backend, aws: str, account: dict[str, Any]) -> None:
    agent_id = fresh_agent_id()
    ref = await _spawned(backend, aws, agent_id, {**account, "userData": "echo hello"})

    attribute = _client(aws).describe_instance_attribute(InstanceId=ref.ref, Attribute="userData")["UserData"]["Value"]
    text = base64.b64decode(attribute).decode()

    assert text.startswith("#!/bin/sh\n")
    assert "echo hello" in text
    assert agent_id in text
    await backend.destroy(agent_id, facts_for(backend), ScaleDownReason.SHUTDOWN)


async def test_the_console_is_read(backend: Ec2Backend, aws: str, account: dict[str, Any]) -> None:
    agent_id = fresh_agent_id()
    await _spawned(backend, aws, agent_id, account)

    text = await backend.logs(agent_id)

    assert "Linux version" in text  # what moto makes up
    assert printed(text).exit_code is None
    await backend.destroy(agent_id, facts_for(backend), ScaleDownReason.SHUTDOWN)


async def test_an_unknown_agent_is_gone_and_has_no_output(backend: Ec2Backend) -> None:
    agent_id = fresh_agent_id()

    assert await backend.logs(agent_id) == ""
    assert await backend.destroy(agent_id, facts_for(backend), ScaleDownReason.SHUTDOWN) == Gone()
