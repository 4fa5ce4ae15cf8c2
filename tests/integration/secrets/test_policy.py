"""The policy of docs/aws.md for secrets and ECR names what is called, and no call more."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hatchway.config.schema import SecretsConfig
from hatchway.errors import AuthError, SecretError
from hatchway.registry.ecr import EcrHost, EcrLogins
from hatchway.secrets.resolver import Purpose, SecretResolver
from tests.support.aws import REGION, Refusing

DOCUMENT = Path(__file__).parents[3] / "docs" / "aws.md"
SERVICES = {
    "secretsmanager": "secretsmanager", "AmazonSSM": "ssm", "AmazonEC2ContainerRegistry_V20150921": "ecr",
}  # fmt: skip
NOT_CALLED_HERE = {"kms:Decrypt", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"}
"""AWS itself asks for the first, and an engine for the others."""


def documented() -> set[str]:
    (block,) = re.findall(r"```json\n(\{[^`]*ReadSecretsOfCi[^`]*)```", DOCUMENT.read_text())
    actions = (statement["Action"] for statement in json.loads(block)["Statement"])
    return {action for one in actions for action in ([one] if isinstance(one, str) else one)}


async def test_the_documented_policy_is_what_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    with Refusing(400, "AccessDeniedException") as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL_ECR", aws.endpoint)
        place = {"region": REGION, "endpointUrl": aws.endpoint}
        contexts = {"sm": {"type": "aws-secrets-manager", **place}, "ssm": {"type": "aws-ssm", **place}}
        resolver = SecretResolver(SecretsConfig.model_validate({"contexts": contexts}), {})
        for reference in ("sm:ci/a", "sm:ci/a#b", "ssm:/ci/a"):
            with pytest.raises(SecretError):
                await resolver.resolve(reference, field="f", purpose=Purpose.env)
        with pytest.raises(AuthError):
            await EcrLogins().login("registry", EcrHost("1" * 12, REGION))

    called = {f"{SERVICES[service]}:{operation}" for service, operation in (call.split(".") for call in aws.calls)}
    assert documented() == called | NOT_CALLED_HERE
