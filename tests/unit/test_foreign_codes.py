"""The code of an AWS error is whatever the endpoint wrote there: a word, or it reaches nobody's terminal or log."""

from __future__ import annotations

import json

import pytest
from botocore.exceptions import ClientError

from hatchway.aws import AwsDenied, AwsError, aws_errors
from hatchway.backends.ec2_errors import Ec2Refused, ec2_error
from hatchway.backends.event_aws import AwsDeliveries
from hatchway.backends.event_targets import EventBridgeTarget, parse_target
from hatchway.config.event_schema import ProvisioningTarget
from hatchway.errors import SpawnError
from hatchway.events import ScaleDown
from hatchway.model import ScaleDownReason
from tests.support.aws import IDENTITY, REGION, Refusing

TOKEN = "MARKERSESSIONTOKEN0123456789abcdef"
STRANGE = {
    "the request's headers": f"X tok {TOKEN} auth AWS4-HMAC-SHA256 Credential={TOKEN}/eu, Signature={TOKEN}",
    "a terminal's escapes": f"X\x1b]0;{TOKEN}\x07\x1b[31mRED",
    "a line of its own": f"X\n{TOKEN}",
    "without an end": TOKEN * 150_000,
    "no text": {"code": TOKEN},
}
GIVEN = ["ThrottlingException", "AWS.SimpleQueueService.NonExistentQueue", "InvalidAMIID.NotFound", "a:b-c_d"]


@pytest.mark.scenario("S41")
@pytest.mark.parametrize("code", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("status", [400, 503])
def test_what_is_no_code_is_not_quoted(code: object, status: int) -> None:
    with pytest.raises(AwsError) as raised, aws_errors():
        raise _client_error(code, status)

    _is_kept_out(str(raised.value))
    assert "an unreadable code" in str(raised.value)
    assert raised.value.code == "an unreadable code"


@pytest.mark.scenario("S41")
@pytest.mark.parametrize("code", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("status", [400, 503])
def test_nor_is_it_from_ec2(code: object, status: int) -> None:
    refused = Ec2Refused("describe_instances", code, "", status)

    for words in (str(refused), str(ec2_error(refused)), refused.code):
        _is_kept_out(words)
        assert "an unreadable code" in words


@pytest.mark.scenario("S41")
@pytest.mark.parametrize("code", {**STRANGE, "without an end": TOKEN * 15_000}.values(), ids=STRANGE)
async def test_nor_is_it_from_an_entry_of_eventbridge(code: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than a MiB no answer is read to its end, so here is half of one."""
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    target = parse_target("eventbridge:agents")
    assert isinstance(target, EventBridgeTarget)
    answer = json.dumps({"FailedEntryCount": 1, "Entries": [{"ErrorCode": code}]})
    event = ScaleDown(scaler_name="s", agent_id="a", reason=ScaleDownReason.DRAIN, request_id="r")
    deliveries = AwsDeliveries()

    with Refusing(400, "", times=0, then=answer) as server:
        settings = ProvisioningTarget(scale_up=str(target), region=REGION, endpoint_url=server.endpoint)
        with pytest.raises(SpawnError, match="an unreadable code") as raised:
            await deliveries.send(target, event, settings)
    deliveries.close()

    _is_kept_out(str(raised.value))


@pytest.mark.parametrize("code", GIVEN)
def test_a_code_is_quoted_as_it_is(code: str) -> None:
    with pytest.raises(AwsError) as raised, aws_errors():
        raise _client_error(code, 400)

    assert raised.value.code == code
    assert code in str(raised.value)
    assert code in str(Ec2Refused("describe_instances", code, ""))


def test_a_code_keeps_its_meaning() -> None:
    with pytest.raises(AwsDenied), aws_errors():
        raise _client_error("AccessDenied", 400)


def test_an_error_without_a_code_says_so() -> None:
    with pytest.raises(AwsError, match=r"refused \(unknown\)"), aws_errors():
        raise _client_error(None, 400)


def _client_error(code: object, status: int) -> ClientError:
    answer = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "DescribeInstances")  # type: ignore[arg-type]


def _is_kept_out(words: str) -> None:
    assert TOKEN not in words
    assert words.isprintable()
    assert len(words) < 500
