"""Which image is pulled with whose credentials: job > scaler > nobody, and each only for its own registry."""

from __future__ import annotations

from typing import Any

import pytest

from hatchway.config.schema import Scaler
from hatchway.errors import AuthError, SecretError
from hatchway.model import ContainerSpec
from hatchway.registry.pull import Logins
from hatchway.secrets.resolver import SecretResolver

OPERATORS = "ghcr.io/ops/agent:1"
OF_JOB = {"username": "job", "tokenSecret": "reg:token"}


def scaler(**fields: Any) -> Scaler:
    return Scaler.model_validate(
        {
            "name": "docker", "type": "container", "maxAgents": 1, "networkIsolation": False,
            "labelSets": [{"labels": ["x"], "image": OPERATORS}],
            "registryAuth": [{"registry": "ghcr.io", "username": "operator", "tokenSecret": "reg:token"}],
            **fields,
        }
    )  # fmt: skip


@pytest.mark.scenario("S31")
@pytest.mark.parametrize(
    ("image", "auth", "user"),
    [
        # the job's explicit login wins over the scaler's for the same host
        ("ghcr.io/team/app", OF_JOB, "job"),
        ("ghcr.io/team/app", None, "operator"),
        ("127.0.0.1:5000/team/app", OF_JOB, "job"),
        ("127.0.0.1:5000/team/app", None, None),
        ("GHCR.IO/team/app", None, "operator"),
    ],
)
async def test_a_jobs_image_is_pulled_with_its_own_then_the_scalers_then_no_credentials(
    resolver: SecretResolver, image: str, auth: dict[str, str] | None, user: str | None
) -> None:
    container = ContainerSpec.model_validate({"image": image, "auth": auth})

    found = await Logins({}).credentials(image, container, scaler(allowJobImage=True), resolver)

    assert (found.username if found else None) == user
    assert (found.source if found else None) == ({"job": "job", "operator": "scaler"}.get(user or ""))


@pytest.mark.parametrize(
    ("container", "allow"),
    [
        (None, True),
        ({"image": "ghcr.io/team/app", "auth": OF_JOB}, False),
        ({"dockerfile": "Dockerfile", "auth": {**OF_JOB, "registry": "ghcr.io"}}, True),
    ],
)
async def test_the_operators_image_is_never_pulled_with_the_jobs_credentials(
    resolver: SecretResolver, container: dict[str, Any] | None, allow: bool
) -> None:
    spec = ContainerSpec.model_validate(container) if container else None

    found = await Logins({}).credentials(OPERATORS, spec, scaler(allowJobImage=allow), resolver)

    assert found is not None
    assert (found.username, found.source) == ("operator", "scaler")


@pytest.mark.parametrize(
    ("own", "error", "words"),
    [
        (
            {"registry": "ghcr.io", "tokenSecret": "reg:absent"},
            SecretError,
            r"\.tokenSecret.*reg:absent",
        ),
        ({"registry": "https://ghcr.io", "tokenSecret": "reg:token"}, AuthError, r"\.registry.*scheme"),
    ],
)
async def test_scaler_credentials_that_cannot_be_resolved_fail_and_never_pull_anonymously(
    resolver: SecretResolver, own: dict[str, str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=rf"scaler docker: registryAuth\[0\]{words}"):
        await Logins({}).credentials(OPERATORS, None, scaler(registryAuth=[own]), resolver)


async def test_a_jobs_credentials_that_cannot_be_resolved_fail_where_the_scalers_would_have_served(
    resolver: SecretResolver,
) -> None:
    container = ContainerSpec.model_validate({"image": "ghcr.io/team/app", "auth": {"tokenSecret": "reg:absent"}})

    with pytest.raises(SecretError, match="reg:absent"):
        await Logins({}).credentials("ghcr.io/team/app", container, scaler(allowJobImage=True), resolver)
