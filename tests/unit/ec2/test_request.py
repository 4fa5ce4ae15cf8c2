"""What EC2 is asked for: walls, tags, tokens, and what is refused before it is asked at all."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hatchway.backends.base import SpawnSpec
from hatchway.backends.ec2_request import (
    Image,
    check_image,
    client_token,
    lifetime,
    placements,
    refuse_what_cannot_run,
    run_instances,
    script,
)
from hatchway.config.ec2_schema import Ec2LabelSet
from hatchway.errors import PermanentSpawnError, SpawnCode
from tests.support.fake_ec2.specs import ec2_scaler, ec2_spec

ENDPOINT = "http://127.0.0.1:1"
CLAIM = "claim-1234567890"
SPOT = {"instanceType": "m7i.large", "spot": True, "maxPrice": "0.05"}
ON_DEMAND = {"instanceType": "m7i.large"}
IMAGE = Image(id="ami-0123456789abcdef0", root_device="/dev/sda1", architecture="x86_64", windows=False)


def spec(env: dict[str, str] | None = None, *, job_id: str | None = "job-1", **keys: Any) -> SpawnSpec:
    lasts, secrets = keys.pop("max_lifetime", None), keys.pop("secrets", frozenset({CLAIM}))
    env = {"KICI_SCALER_CLAIM_CODE": CLAIM, "KICI_ORCHESTRATOR_URL": "https://gateway.example:8780", **(env or {})}
    return ec2_spec(
        ec2_scaler(ENDPOINT, **keys), "scaler-1", env, "installation-1",
        secret_values=secrets, job_id=job_id, run_id="run-1", max_lifetime=lasts,
    )  # fmt: skip


def ec2_of(one: SpawnSpec) -> Ec2LabelSet:
    assert one.label_set.ec2 is not None
    return one.label_set.ec2


def asked(one: SpawnSpec, offer: int = 0) -> dict[str, Any]:
    ec2 = ec2_of(one)
    return run_instances(one, ec2, IMAGE, list(placements(ec2))[offer], "#!/bin/sh\n")


def test_an_instance_has_no_key_one_metadata_hop_an_encrypted_root_and_ends_when_it_is_turned_off() -> None:
    ask = asked(spec(ec2={"rootVolume": {"sizeGib": 40, "kmsKeyId": "alias/ci"}, "instanceProfile": "ci-agent"}))

    assert "KeyName" not in ask
    assert ask["MetadataOptions"] == {
        "HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1
    }  # fmt: skip
    assert ask["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert ask["BlockDeviceMappings"] == [
        {
            "DeviceName": "/dev/sda1",
            "Ebs": {
                "VolumeType": "gp3", "DeleteOnTermination": True, "Encrypted": True, "VolumeSize": 40,
                "KmsKeyId": "alias/ci",
            },
        }
    ]  # fmt: skip
    assert ask["IamInstanceProfile"] == {"Name": "ci-agent"}
    assert (ask["MinCount"], ask["MaxCount"]) == (1, 1)


def test_an_images_further_volumes_go_with_the_instance_and_are_encrypted_like_its_root() -> None:
    one = spec(ec2={"rootVolume": {"sizeGib": 40, "kmsKeyId": "alias/ci"}})
    image = replace(IMAGE, volumes=("/dev/sda1", "/dev/sdf", "/dev/sdg"))

    (placement,) = placements(ec2_of(one))
    root, *further = run_instances(one, ec2_of(one), image, placement, "#!/bin/sh\n")["BlockDeviceMappings"]

    ebs = {"DeleteOnTermination": True, "Encrypted": True, "KmsKeyId": "alias/ci"}
    assert root["DeviceName"] == "/dev/sda1"
    assert further == [{"DeviceName": "/dev/sdf", "Ebs": ebs}, {"DeviceName": "/dev/sdg", "Ebs": ebs}]


def test_a_label_set_without_a_profile_gives_the_instance_no_role() -> None:
    assert "IamInstanceProfile" not in asked(spec())


def test_instance_and_volume_bear_whose_they_are_beside_the_label_sets_own_tags() -> None:
    ask = asked(spec(ec2={"tags": {"cost-center": "ci", "Name": "agent"}}))

    kinds = [specification["ResourceType"] for specification in ask["TagSpecifications"]]
    tags = {tag["Key"]: tag["Value"] for tag in ask["TagSpecifications"][0]["Tags"]}
    assert kinds == ["instance", "volume"]
    assert tags == {
        "Name": "agent", "cost-center": "ci", "kici-managed": "true", "kici-scaler-name": "aws",
        "kici-agent-id": "scaler-1", "kici-labels": "linux", "hatchway.installation": "installation-1",
        "kici-bound-job-id": "job-1", "kici-run-id": "run-1",
    }  # fmt: skip


def test_a_spot_offer_is_one_time_and_ends_when_it_is_taken_back() -> None:
    ask = asked(spec(ec2={"offers": [SPOT, ON_DEMAND]}))

    assert ask["InstanceMarketOptions"] == {
        "MarketType": "spot",
        "SpotOptions": {
            "SpotInstanceType": "one-time",
            "InstanceInterruptionBehavior": "terminate",
            "MaxPrice": "0.05",
        },
    }
    assert "InstanceMarketOptions" not in asked(spec(ec2={"offers": [SPOT, ON_DEMAND]}), offer=1)


def test_every_offer_is_tried_in_every_subnet_before_the_next() -> None:
    ec2 = ec2_of(spec(ec2={"offers": [SPOT, ON_DEMAND], "subnets": ["subnet-0000000a", "subnet-0000000b"]}))

    wanted = [(one.offer.spot, one.subnet[-1]) for one in placements(ec2)]

    assert wanted == [(True, "a"), (True, "b"), (False, "a"), (False, "b")]


@pytest.mark.scenario("S01", "S02")
def test_a_token_is_of_the_agent_and_the_offer_and_of_nothing_else() -> None:
    ec2 = ec2_of(spec(ec2={"offers": [SPOT, ON_DEMAND], "subnets": ["subnet-0000000a", "subnet-0000000b"]}))
    reversed_ = ec2_of(spec(ec2={"offers": [ON_DEMAND, SPOT], "subnets": ["subnet-0000000a", "subnet-0000000b"]}))

    tokens = [client_token("i-1", "scaler-1", one) for one in placements(ec2)]

    assert len(set(tokens)) == 4
    assert all(len(token) <= 64 and token.isascii() for token in tokens)
    assert {client_token("i-1", "scaler-1", one) for one in placements(reversed_)} == set(tokens)
    assert not {client_token("i-1", "scaler-2", one) for one in placements(ec2)} & set(tokens)
    assert not {client_token("i-2", "scaler-1", one) for one in placements(ec2)} & set(tokens)


REFUSED = {
    "a secret in the environment": (spec({"TOKEN": "x-hunter22-y"}, secrets=frozenset({CLAIM, "hunter22"})), "TOKEN"),
    "another installation": (spec(), "another installation"),
    "no section": (spec(labelSet={"ec2": None}), "a section `ec2`"),
}


@pytest.mark.scenario("S41")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_refused_before_ec2_is_asked(name: str) -> None:
    one, words = REFUSED[name]

    with pytest.raises(PermanentSpawnError, match=words) as raised:
        refuse_what_cannot_run(one, "elsewhere" if name == "another installation" else "installation-1")

    assert raised.value.code is SpawnCode.INVALID_SPEC
    assert "hunter22" not in str(raised.value)


def test_a_gateway_on_loopback_is_refused_where_instances_are_real() -> None:
    scaler = ec2_scaler(ENDPOINT)
    scaler["ec2"] = {"region": "eu-central-1"}
    one = ec2_spec(scaler, "scaler-1", {"KICI_ORCHESTRATOR_URL": "http://127.0.0.1:8780"}, "installation-1")

    with pytest.raises(PermanentSpawnError, match="orchestratorUrl"):
        refuse_what_cannot_run(one, "installation-1")


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (Image("ami-1", "/dev/xvda", "arm64", windows=False), SpawnCode.WRONG_ARCHITECTURE),
        (Image("ami-1", "/dev/xvda", "x86_64", windows=True), SpawnCode.INVALID_SPEC),
    ],
)
def test_an_image_that_is_something_else_than_its_scaler_says_is_refused(image: Image, code: SpawnCode) -> None:
    with pytest.raises(PermanentSpawnError) as raised:
        check_image(image, spec())

    assert raised.value.code is code


def test_an_environment_that_does_not_fit_is_refused_with_the_numbers() -> None:
    one = spec({"LARGE": "x" * 9000})

    with pytest.raises(PermanentSpawnError, match=r"make \d+ bytes of user data, and EC2 takes 16384"):
        script(one, ec2_of(one), "eu-central-1")


HOUR = timedelta(hours=1)
LIMITS = {
    # of the label set, of the agent, for a job -> when the instance ends itself
    "no lifetime": (spec(), None),
    "a job's lifetime, with the time to adopt, the grace and ten minutes": (
        spec(max_lifetime=HOUR), HOUR + timedelta(seconds=300 + 1 + 600),
    ),
    "a warm agent, whose job's lifetime begins with the job": (spec(max_lifetime=HOUR, job_id=None), None),
    "what the label set says, whatever else": (
        spec(max_lifetime=HOUR, ec2={"maxInstanceSeconds": 90}, job_id=None), timedelta(seconds=90),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_the_instances_own_time_limit_never_ends_a_job_that_may_still_run(name: str) -> None:
    one, limit = LIMITS[name]

    assert lifetime(one, ec2_of(one)) == limit


def test_an_agent_that_may_be_awaited_for_longer_gets_that_time_on_its_instance_too() -> None:
    """Of a request's own adoption timeout: else a job that began late would lose its machine at work."""
    one = replace(spec(max_lifetime=HOUR), adoption_timeout=2 * HOUR)

    assert lifetime(one, ec2_of(one)) == 3 * HOUR + timedelta(seconds=1 + 600)


OUTLIVED = {
    "a lifetime": spec(max_lifetime=HOUR, ec2={"maxInstanceSeconds": 3600}),
    "a time to be adopted in": replace(
        spec(max_lifetime=HOUR / 2, ec2={"maxInstanceSeconds": 3600}), adoption_timeout=HOUR
    ),
}


@pytest.mark.parametrize("name", OUTLIVED)
def test_a_request_that_may_outlive_its_instance_is_refused_with_the_numbers(name: str) -> None:
    with pytest.raises(PermanentSpawnError, match=r"maxInstanceSeconds.*3600") as raised:
        refuse_what_cannot_run(OUTLIVED[name], "installation-1")

    assert raised.value.code is SpawnCode.INVALID_SPEC


def test_a_request_that_fits_into_the_instances_time_is_let_through() -> None:
    one = spec(max_lifetime=HOUR, ec2={"maxInstanceSeconds": 3900})

    assert refuse_what_cannot_run(one, "installation-1") == ec2_of(one)
