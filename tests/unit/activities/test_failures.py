"""Whose failure it is: the scaler backs off only for what the next job would meet as well."""

from __future__ import annotations

from typing import Any

import pytest

from activities.failures import blames_scaler
from hatchway.config.schema import Scaler
from hatchway.errors import SpawnCode
from hatchway.model import ProvisionRequest

OF_THE_BACKEND = [SpawnCode.DAEMON_UNAVAILABLE, SpawnCode.DISK_FULL, SpawnCode.CAPACITY, SpawnCode.QUOTA, None]
OF_THE_IMAGE = [
    SpawnCode.IMAGE_NOT_FOUND,
    SpawnCode.REGISTRY_UNREACHABLE,
    SpawnCode.RATE_LIMITED,
    SpawnCode.WRONG_ARCHITECTURE,
    SpawnCode.NO_AGENT,
    SpawnCode.COMMAND_NOT_FOUND,
]
OF_THE_SPEC = [SpawnCode.AUTH_DENIED, SpawnCode.INVALID_SPEC]

PLAIN: dict[str, Any] = {}
IMAGE = {"container": {"image": "jobs/own:1"}}
AUTH = {"container": {"image": "jobs/own:1", "auth": {"tokenSecret": "registry:token"}}}
ENV = {"container": {"image": "jobs/own:1", "env": {"A": "b"}}}
RESOURCES = {"resources": {"requests": {"cpus": 64}}}


def _scaler(*, allow_job_image: bool) -> Scaler:
    return Scaler.model_validate(
        {
            "name": "docker",
            "type": "container",
            "maxAgents": 1,
            "networkIsolation": False,
            "allowJobImage": allow_job_image,
            "labelSets": [{"labels": ["linux"], "image": "agents/own:1"}],
        }
    )


def _blames(code: SpawnCode | None, request: dict[str, Any], *, allow_job_image: bool = False) -> bool:
    asked = ProvisionRequest.model_validate({"labels": ["linux"], **request})
    return blames_scaler(code, asked, _scaler(allow_job_image=allow_job_image))


@pytest.mark.parametrize("code", [*OF_THE_BACKEND, *OF_THE_IMAGE, *OF_THE_SPEC])
def test_a_job_that_brings_nothing_is_never_to_blame(code: SpawnCode | None) -> None:
    assert _blames(code, PLAIN)
    assert _blames(code, PLAIN, allow_job_image=True)


@pytest.mark.parametrize("request_", [PLAIN, IMAGE, AUTH, ENV, RESOURCES])
@pytest.mark.parametrize("code", OF_THE_BACKEND)
def test_what_the_backend_lacks_it_lacks_for_every_job(code: SpawnCode | None, request_: dict[str, Any]) -> None:
    assert _blames(code, request_, allow_job_image=True)


@pytest.mark.parametrize("request_", [IMAGE, AUTH, ENV])
@pytest.mark.parametrize("code", [*OF_THE_IMAGE, *OF_THE_SPEC])
def test_errors_of_a_job_s_own_image_are_the_job_s(code: SpawnCode, request_: dict[str, Any]) -> None:
    assert not _blames(code, request_, allow_job_image=True)


@pytest.mark.parametrize("code", OF_THE_IMAGE)
def test_an_image_that_the_scaler_does_not_let_the_job_choose_is_the_scaler_s(code: SpawnCode) -> None:
    assert _blames(code, IMAGE)


@pytest.mark.parametrize(
    ("code", "request_"),
    [
        (SpawnCode.AUTH_DENIED, AUTH),
        (SpawnCode.AUTH_DENIED, ENV),
        (SpawnCode.INVALID_SPEC, ENV),
        (SpawnCode.INVALID_SPEC, RESOURCES),
    ],
)
def test_a_job_that_brings_credentials_variables_or_a_shape_may_be_to_blame(
    code: SpawnCode, request_: dict[str, Any]
) -> None:
    assert not _blames(code, request_)
