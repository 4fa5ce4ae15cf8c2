"""What a configuration may say of secrets that lie in AWS, and of the sources of registry credentials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hatchway.config.loading import load
from hatchway.config.schema import EcrFor
from hatchway.errors import ConfigError

DOCKER: dict[str, Any] = {
    "name": "d", "type": "container", "maxAgents": 1, "labelSets": [{"labels": ["x"], "image": "nginx"}],
}  # fmt: skip
METAL: dict[str, Any] = {"name": "m", "type": "bare-metal", "maxAgents": 1, "labelSets": [{"labels": ["y"]}]}


def write(directory: Path, context: dict[str, Any] | None = None, *scalers: dict[str, Any]) -> Path:
    path = directory / "hatchway.yaml"
    secrets = {"contexts": {"aws": context}} if context else {}
    path.write_text(json.dumps({"version": 1, "secrets": secrets, "scalers": list(scalers or [DOCKER])}))
    return path


@pytest.mark.parametrize("kind", ["aws-secrets-manager", "aws-ssm"])
@pytest.mark.parametrize(
    "keys",
    [
        {}, {"region": "eu-central-1"}, {"region": "us-gov-west-1"}, {"region": "ap-southeast-7"},
        {"endpointUrl": "https://vpce-1.secretsmanager.eu-central-1.vpce.amazonaws.com"},
        {"endpointUrl": "http://127.0.0.1:5000"}, {"endpointUrl": "http://localhost:4566"},
        {"names": ["ci/*", "ci/registry#token"], "registries": ["ghcr.io"], "env": True},
    ],
)  # fmt: skip
def test_a_context_of_aws_is_taken(tmp_path: Path, kind: str, keys: dict[str, Any]) -> None:
    config = load(write(tmp_path, {"type": kind, **keys}))

    assert config.secrets.contexts["aws"].type == kind


@pytest.mark.parametrize("kind", ["aws-secrets-manager", "aws-ssm"])
@pytest.mark.parametrize(
    ("keys", "place", "words"),
    [
        ({"region": "Frankfurt"}, "region", "is not an AWS region"),
        ({"region": "eu-central-1.evil.example/"}, "region", "is not an AWS region"),
        ({"endpointUrl": "http://secrets.example"}, "endpointUrl", "in the clear"),
        ({"endpointUrl": "ftp://x"}, "endpointUrl", "https://"),
        ({"endpointUrl": "https://[::1"}, "endpointUrl", "no URL"),
        ({"endpointUrl": "https://x:99999"}, "endpointUrl", "no URL"),
        ({"endpointUrl": "http://127.1"}, "endpointUrl", "no URL"),
        ({"endpointUrl": "secrets.example"}, "endpointUrl", "https://"),
        ({"endpointUrl": "https://user:hunter2@x"}, "endpointUrl", "without user"),
        ({"endpointUrl": "https://x?token=hunter2"}, "endpointUrl", "without user"),
        ({"env": False}, "contexts.aws", "serves nothing"),
        ({"path": "/x"}, "path", ""),
        ({"secretAccessKey": "hunter2"}, "secretAccessKey", ""),
    ],
)
def test_a_context_of_aws_that_cannot_be_meant_is_refused_at_its_place(
    tmp_path: Path, kind: str, keys: dict[str, Any], place: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(write(tmp_path, {"type": kind, **keys}))

    assert place in str(refused.value)
    assert words in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_scaler_that_refers_to_a_key_that_its_context_does_not_serve_is_refused_at_load(tmp_path: Path) -> None:
    context = {"type": "aws-secrets-manager", "registries": ["ghcr.io"], "names": ["ci/registry#token"]}
    own = {"registry": "ghcr.io", "username": "x"}

    load(write(tmp_path, context, {**DOCKER, "registryAuth": [{**own, "tokenSecret": "aws:ci/registry#token"}]}))
    for reference in ("aws:ci/registry", "aws:ci/registry#other"):
        with pytest.raises(ConfigError, match="does not serve"):
            load(write(tmp_path, context, {**DOCKER, "registryAuth": [{**own, "tokenSecret": reference}]}))


def test_nothing_but_references_serves_unless_the_operator_says_so(tmp_path: Path) -> None:
    """A docker config, and jobs' images by the worker's AWS identity, are asked for by name."""
    (scaler,) = load(write(tmp_path)).scalers

    assert (scaler.use_host_docker_config, scaler.ecr_for) == (False, EcrFor.LABEL_SETS)


@pytest.mark.parametrize(("key", "value"), [("useHostDockerConfig", True), ("ecrFor", "none")])
def test_sources_of_pull_credentials_belong_to_containers(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        load(write(tmp_path, None, {**METAL, key: value}))


def test_an_unknown_rule_for_ecr_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ecrFor"):
        load(write(tmp_path, None, {**DOCKER, "ecrFor": "everybody"}))
