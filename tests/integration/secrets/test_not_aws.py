"""Whatever else answers in AWS's place: a proxy's page, or some web server behind a wrong endpoint."""

from __future__ import annotations

import json

import pytest

from hatchway import aws
from hatchway.config.schema import SecretsConfig
from hatchway.errors import SecretError, SecretUnavailable
from hatchway.secrets.policy import Purpose
from hatchway.secrets.resolver import SecretResolver
from tests.support.aws import REGION, Refusing

FIELD = "labelSet.env"
ANSWERS = {
    "a page": "<html>You sent Authorization: Credential=AKIA</html>",
    "an empty object": "{}",
    "a list": "[1]",
    "nothing": "",
    "a secret of another kind": json.dumps({"SecretString": 5, "Parameter": 5}),
}


async def _served(endpoint: str, reference: str) -> str:
    place = {"region": REGION, "endpointUrl": endpoint}
    contexts = {"sm": {"type": "aws-secrets-manager", **place}, "ssm": {"type": "aws-ssm", **place}}
    resolver = SecretResolver(SecretsConfig.model_validate({"contexts": contexts}), {})
    return (await resolver.resolve(reference, field=FIELD, purpose=Purpose.env)).reveal()


@pytest.mark.parametrize("reference", ["sm:x", "ssm:x"])
@pytest.mark.parametrize("said", ANSWERS.values(), ids=ANSWERS)
async def test_what_is_not_aws_refuses_no_job_for_good(
    monkeypatch: pytest.MonkeyPatch, reference: str, said: str
) -> None:
    monkeypatch.setattr(aws, "ATTEMPTS", 1)
    with Refusing(200, "", times=0, then=said) as anything, pytest.raises(SecretUnavailable) as refused:
        await _served(anything.endpoint, reference)

    assert "not AWS" in str(refused.value)
    assert "AKIA" not in str(refused.value)


async def test_half_of_a_surrogate_pair_is_no_secret_that_anything_can_carry() -> None:
    said = json.dumps({"Name": "x", "SecretString": "walue-\ud800-end"})
    with Refusing(200, "", times=0, then=said) as anything, pytest.raises(SecretError) as refused:
        await _served(anything.endpoint, "sm:x")

    assert FIELD in str(refused.value)
    assert "surrogate" in str(refused.value)
    assert "walue" not in str(refused.value)
