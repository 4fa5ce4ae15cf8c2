"""What EC2's codes mean for a spawn: the consequence, the code, and whether the next offer is asked for."""

from __future__ import annotations

import pytest

from hatchway.backends.ec2_errors import Ec2Refused, Ec2Unreachable, ec2_error, tries_next_offer, unreachable_error
from hatchway.errors import PermanentSpawnError, SpawnCode, TransientSpawnError

CODES = [
    # code of EC2, code of ours, permanent, next offer
    ("InsufficientInstanceCapacity", SpawnCode.CAPACITY, False, True),
    ("InsufficientHostCapacity", SpawnCode.CAPACITY, False, True),
    ("InsufficientReservedInstanceCapacity", SpawnCode.CAPACITY, False, True),
    ("SpotMaxPriceTooLow", SpawnCode.CAPACITY, False, True),
    ("InsufficientFreeAddressesInSubnet", SpawnCode.CAPACITY, False, True),
    ("Unsupported", SpawnCode.INVALID_SPEC, True, True),
    ("InstanceLimitExceeded", SpawnCode.QUOTA, False, True),
    ("VcpuLimitExceeded", SpawnCode.QUOTA, False, True),
    ("MaxSpotInstanceCountExceeded", SpawnCode.QUOTA, False, True),
    ("VolumeLimitExceeded", SpawnCode.QUOTA, False, True),
    ("RequestLimitExceeded", SpawnCode.RATE_LIMITED, False, False),
    ("Throttling", SpawnCode.RATE_LIMITED, False, False),
    ("EC2ThrottledException", SpawnCode.RATE_LIMITED, False, False),
    ("UnauthorizedOperation", SpawnCode.AUTH_DENIED, True, False),
    ("AuthFailure", SpawnCode.AUTH_DENIED, True, False),
    ("InvalidClientTokenId", SpawnCode.AUTH_DENIED, True, False),
    ("OptInRequired", SpawnCode.AUTH_DENIED, True, False),
    ("ExpiredToken", SpawnCode.AUTH_DENIED, False, False),
    ("RequestExpired", SpawnCode.AUTH_DENIED, False, False),
    ("PendingVerification", SpawnCode.AUTH_DENIED, False, False),
    ("InvalidAMIID.NotFound", SpawnCode.IMAGE_NOT_FOUND, True, False),
    ("InvalidAMIID.Unavailable", SpawnCode.IMAGE_NOT_FOUND, True, False),
    ("InvalidAMIID.Malformed", SpawnCode.IMAGE_NOT_FOUND, True, False),
    ("InvalidSubnetID.NotFound", SpawnCode.INVALID_SPEC, True, False),
    ("InvalidGroup.NotFound", SpawnCode.INVALID_SPEC, True, False),
    ("InvalidParameterValue", SpawnCode.INVALID_SPEC, True, False),
    ("InvalidBlockDeviceMapping", SpawnCode.INVALID_SPEC, True, False),
    ("ParamValidationError", SpawnCode.INVALID_SPEC, True, False),
    ("AWordOfTomorrow", SpawnCode.INVALID_SPEC, True, False),
    ("InternalError", SpawnCode.DAEMON_UNAVAILABLE, False, False),
    ("Unavailable", SpawnCode.DAEMON_UNAVAILABLE, False, False),
]


@pytest.mark.scenario("S38")
@pytest.mark.parametrize(("theirs", "ours", "permanent", "next_offer"), CODES, ids=[row[0] for row in CODES])
def test_each_code_has_its_consequence(theirs: str, ours: SpawnCode, permanent: bool, next_offer: bool) -> None:
    refused = Ec2Refused("run_instances", theirs, "as AWS words it")

    error = ec2_error(refused)

    assert isinstance(error, PermanentSpawnError if permanent else TransientSpawnError)
    assert error.code is ours
    assert tries_next_offer(refused) is next_offer
    assert "as AWS words it" in str(error)
    assert theirs in str(error)


def test_an_unknown_code_with_a_server_error_is_tried_again() -> None:
    error = ec2_error(Ec2Refused("run_instances", "AWordOfTomorrow", "", 503))

    assert isinstance(error, TransientSpawnError)
    assert error.code is SpawnCode.DAEMON_UNAVAILABLE


@pytest.mark.scenario("S38")
def test_a_throttled_call_says_when_to_come_back() -> None:
    error = ec2_error(Ec2Refused("run_instances", "RequestLimitExceeded", "", 503))

    assert isinstance(error, TransientSpawnError)
    assert error.retry_after is not None


def test_an_architecture_that_does_not_match_is_said_so_whatever_the_code() -> None:
    said = (
        "The architecture 'arm64' of the specified instance type does not match the architecture 'x86_64' of the AMI."
    )
    refused = Ec2Refused("run_instances", "Unsupported", said)

    error = ec2_error(refused)

    assert isinstance(error, PermanentSpawnError)
    assert error.code is SpawnCode.WRONG_ARCHITECTURE
    assert not tries_next_offer(refused)


def test_the_encoded_blob_of_a_denial_stays_out() -> None:
    said = "You are not authorized to perform this operation. Encoded authorization failure message: " + "x" * 3000

    words = str(ec2_error(Ec2Refused("run_instances", "UnauthorizedOperation", said, 403)))

    assert "You are not authorized" in words
    assert "xxx" not in words


def test_text_with_braces_and_escapes_is_only_quoted() -> None:
    words = str(ec2_error(Ec2Refused("run_instances", "InternalError", "{said} \x1b[31mred\x1b[0m {0}")))

    assert "{said} red {0}" in words


def test_no_answer_is_tried_again() -> None:
    error = unreachable_error(Ec2Unreachable("EC2 did not answer"))

    assert error.code is SpawnCode.DAEMON_UNAVAILABLE
