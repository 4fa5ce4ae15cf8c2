"""Secrets that lie in AWS: served by name and key, under the same rules as any other, and never shown."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from pathlib import Path
from typing import Any

import boto3
import pytest

from hatchway import aws
from hatchway.config.schema import SecretsConfig
from hatchway.errors import SecretError, SecretNotAllowed, SecretUnavailable
from hatchway.secrets.resolver import Purpose, SecretResolver
from tests.support.aws import REGION, Refusing

FIELD = "container.auth.tokenSecret"
VALUE = "t0ken-walue"


def resolver(endpoint: str, **context: Any) -> SecretResolver:
    place = {"region": REGION, "endpointUrl": endpoint, **context}
    contexts = {"sm": {"type": "aws-secrets-manager", **place}, "ssm": {"type": "aws-ssm", **place}}
    return SecretResolver(SecretsConfig.model_validate({"contexts": contexts}), {})


async def served(resolver: SecretResolver, reference: str, purpose: Purpose = Purpose.env) -> str:
    return (await resolver.resolve(reference, field=FIELD, purpose=purpose)).reveal()


@pytest.fixture
def name() -> str:
    """A secret of this test alone."""
    return f"ci/registry-{uuid.uuid4().hex}"


@pytest.fixture
def secrets(aws_endpoint: str) -> Any:
    return boto3.client("secretsmanager", region_name=REGION, endpoint_url=aws_endpoint)


@pytest.fixture
def parameters(aws_endpoint: str) -> Any:
    return boto3.client("ssm", region_name=REGION, endpoint_url=aws_endpoint)


async def test_a_secret_is_served_whole_and_by_the_keys_of_its_json(aws_endpoint: str, secrets: Any, name: str) -> None:
    text = json.dumps({"user": "robot", "token": VALUE, "a#b:c": "odd key"})
    secrets.create_secret(Name=name, SecretString=text)
    resolve = resolver(aws_endpoint)

    assert await served(resolve, f"sm:{name}") == text
    assert await served(resolve, f"sm:{name}#token") == VALUE
    assert await served(resolve, f"sm:{name}#a#b:c") == "odd key"


async def test_a_rotated_secret_is_in_force_at_the_next_call(aws_endpoint: str, secrets: Any, name: str) -> None:
    resolve = resolver(aws_endpoint)
    secrets.create_secret(Name=name, SecretString="old")
    before = await served(resolve, f"sm:{name}")

    secrets.put_secret_value(SecretId=name, SecretString="new")

    assert (before, await served(resolve, f"sm:{name}")) == ("old", "new")


@pytest.mark.parametrize("kind", ["SecureString", "String"])
@pytest.mark.parametrize("slash", ["/", ""])
async def test_a_parameter_is_served_decrypted(aws_endpoint: str, parameters: Any, kind: str, slash: str) -> None:
    name = f"{slash}p{uuid.uuid4().hex}" if not slash else f"/ci/{uuid.uuid4().hex}"
    parameters.put_parameter(Name=name, Value=VALUE, Type=kind)

    assert await served(resolver(aws_endpoint), f"ssm:{name}") == VALUE


@pytest.mark.parametrize(
    ("content", "key", "reason"),
    [
        (VALUE, "#token", "is not JSON"),
        ("[" * 60_000, "#token", "is not JSON"),
        (f'"{VALUE}"', "#token", "is not a JSON object"),
        (json.dumps({"token": VALUE}), "#absent", "has no such key"),
        (json.dumps({"token": [VALUE]}), "#token", "something else than a string"),
        (json.dumps({"token": ""}), "#token", "is empty"),
        (json.dumps({"token": f"{VALUE}\0"}), "#token", "NUL"),
        (json.dumps({"token": VALUE}), "#", "no key after"),
        (VALUE.encode(), "", "is binary"),
    ],
)
async def test_a_secret_that_cannot_be_meant_is_told_with_the_reason_and_without_its_value(
    *, aws_endpoint: str, secrets: Any, name: str, content: str | bytes, key: str, reason: str
) -> None:
    how = {"SecretBinary": content} if isinstance(content, bytes) else {"SecretString": content}
    secrets.create_secret(Name=name, **how)

    with pytest.raises(SecretError, match=reason) as refused:
        await served(resolver(aws_endpoint), f"sm:{name}{key}")

    assert FIELD in str(refused.value)
    assert f"sm:{name}{key}" in str(refused.value)
    assert VALUE not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    "reference",
    [
        "sm:arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci/registry-AbCdEf", "sm:a b#c", "sm:naïve",
        "sm:x#",
        "ssm:arn:aws:ssm:eu-central-1:123456789012:parameter/ci", "ssm:/ci/token:3", "ssm:/ci/token:label",
        "ssm:/aws/reference/secretsmanager/ci", "ssm:/AWS/x", "ssm:aws/x", "ssm:/ci//token", "ssm:../x y", "ssm:/",
        "ssm:/ci/token#key",
    ],
)  # fmt: skip
async def test_a_name_that_leads_elsewhere_is_refused_and_aws_is_not_asked(reference: str) -> None:
    with Refusing(200, "") as anything, pytest.raises(SecretError) as refused:
        await resolver(anything.endpoint).resolve(reference, field=FIELD, purpose=Purpose.env)

    assert anything.asked == 0
    assert FIELD in str(refused.value)
    assert not isinstance(refused.value, SecretUnavailable)


@pytest.mark.parametrize("reference", ["sm:absent", "sm:absent#key", "ssm:/absent", "ssm:absent"])
async def test_a_name_that_leads_nowhere_is_said_to(aws_endpoint: str, reference: str) -> None:
    with pytest.raises(SecretError, match=r"does not exist in .* of that region and account"):
        await resolver(aws_endpoint).resolve(reference, field=FIELD, purpose=Purpose.env)


async def test_a_list_of_parameters_is_no_secret(aws_endpoint: str, parameters: Any) -> None:
    name = f"/ci/{uuid.uuid4().hex}"
    parameters.put_parameter(Name=name, Value=f"{VALUE},x", Type="StringList")

    with pytest.raises(SecretError, match="is a list") as refused:
        await served(resolver(aws_endpoint), f"ssm:{name}")

    assert VALUE not in str(refused.value)


@pytest.mark.parametrize("context", ["sm", "ssm"])
async def test_aws_serves_only_the_registries_and_names_that_its_context_lists(
    aws_endpoint: str, secrets: Any, parameters: Any, context: str
) -> None:
    name = f"ci-{uuid.uuid4().hex}"
    secrets.create_secret(Name=name, SecretString=VALUE)
    parameters.put_parameter(Name=name, Value=VALUE, Type="SecureString")
    resolve = resolver(aws_endpoint, registries=["ghcr.io"], names=["ci-*"])

    assert await served(resolve, f"{context}:{name}", Purpose.registry("ghcr.io")) == VALUE
    for reference, purpose in (
        (f"{context}:{name}", Purpose.registry("evil.example")),
        (f"{context}:{name}", Purpose.env),
        (f"{context}:other", Purpose.registry("ghcr.io")),
    ):
        with pytest.raises(SecretNotAllowed):
            await resolve.resolve(reference, field=FIELD, purpose=purpose)


@pytest.mark.parametrize(
    ("names", "reference", "allowed"),
    [
        (["ci/registry"], "sm:ci/registry#token", True),
        (["ci/registry"], "sm:ci/registry", True),
        (["ci/*"], "sm:ci/registry#token", True),
        (["ci/registry#token"], "sm:ci/registry#token", True),
        (["ci/registry#token"], "sm:ci/registry#other", False),
        (["ci/registry#token"], "sm:ci/registry", False),
        (["*token"], "sm:ci/registry#token", False),
        (["token"], "sm:ci/registry#token", False),
    ],
)
async def test_a_pattern_without_a_hash_is_for_the_secret_and_one_with_a_hash_for_its_keys(
    names: list[str], reference: str, allowed: bool
) -> None:
    with Refusing(400, "ResourceNotFoundException") as nothing_there, pytest.raises(SecretError) as refused:
        await served(resolver(nothing_there.endpoint, names=names), reference)

    assert isinstance(refused.value, SecretNotAllowed) is not allowed
    assert nothing_there.asked == allowed


@pytest.mark.scenario("S38")
@pytest.mark.parametrize("reference", ["sm:x", "ssm:x"])
@pytest.mark.parametrize(("status", "code"), [(400, "ThrottlingException"), (500, "InternalServiceError")])
async def test_what_aws_throttles_or_fails_at_is_tried_a_few_times_and_may_be_tried_later(
    monkeypatch: pytest.MonkeyPatch, reference: str, status: int, code: str
) -> None:
    with Refusing(status, code, message=VALUE) as refusing, pytest.raises(SecretUnavailable) as refused:
        await served(resolver(refusing.endpoint), reference)

    assert refusing.asked == aws.ATTEMPTS
    assert code in str(refused.value)
    assert VALUE not in str(refused.value)


async def test_a_call_that_is_throttled_once_is_served_by_its_retry() -> None:
    answer = json.dumps({"SecretString": VALUE})
    with Refusing(400, "ThrottlingException", times=1, then=answer) as busy:
        assert await served(resolver(busy.endpoint), "sm:x") == VALUE

    assert busy.asked == 2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("AccessDeniedException", "may not .*needs Get"),
        ("ExpiredTokenException", "does not take the worker's credentials"),
        ("DecryptionFailure", "DecryptionFailure"),
        ("InvalidRequestException", "InvalidRequestException"),
    ],
)
@pytest.mark.parametrize("reference", ["sm:x", "ssm:x"])
async def test_what_aws_refuses_is_said_once_in_its_own_word(reference: str, code: str, words: str) -> None:
    with Refusing(400, code, message=VALUE) as refusing, pytest.raises(SecretError, match=words) as refused:
        await served(resolver(refusing.endpoint), reference)

    assert not isinstance(refused.value, SecretUnavailable)
    assert refusing.asked == 1
    assert VALUE not in str(refused.value)


async def test_an_endpoint_that_takes_calls_and_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws, "READ_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SecretUnavailable, match="did not answer"):
            await served(resolver(endpoint), "sm:x")


async def test_aws_that_does_not_answer_holds_up_no_other_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The loop's own threads are six on two processors: forty questions to AWS would keep a file waiting."""
    monkeypatch.setattr(aws, "READ_S", 60)  # nobody is answered before the file's secret is; it ends with the server
    (tmp_path / "token").write_text(VALUE)
    files = SecretResolver(
        SecretsConfig.model_validate({"contexts": {"f": {"type": "file", "path": str(tmp_path)}}}), {}
    )
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        slow = resolver(f"http://127.0.0.1:{silent.getsockname()[1]}")
        asking = [asyncio.create_task(served(slow, "sm:x")) for _ in range(40)]
        await asyncio.sleep(0.1)

        await served(files, "f:token")

        assert not any(task.done() for task in asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_an_endpoint_that_is_not_there_is_said_so() -> None:
    with pytest.raises(SecretUnavailable, match="did not answer"):
        await served(resolver("http://127.0.0.1:1"), "ssm:x")


async def test_a_worker_without_an_aws_identity_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)

    with pytest.raises(SecretError, match="no AWS credentials"):
        await served(resolver("http://127.0.0.1:1"), "sm:x")
