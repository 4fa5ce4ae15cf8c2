"""Which image is pulled with whose credentials: job > scaler > nobody, and each only for its own registry."""

from __future__ import annotations

from typing import Any

import pytest

from hatchway.config.schema import Scaler
from hatchway.errors import SecretError
from hatchway.model import ContainerSpec
from hatchway.registry.auth import ContainerSpawn, resolve_container_spawn
from hatchway.registry.pull import plan_pull
from hatchway.secrets.resolver import SecretResolver

OPERATORS = "ghcr.io/ops/agent:1"


def scaler(**fields: Any) -> Scaler:
    return Scaler.model_validate(
        {
            "name": "docker", "type": "container", "maxAgents": 1, "networkIsolation": False,
            "labelSets": [{"labels": ["x"], "image": OPERATORS}],
            "registryAuth": [{"registry": "ghcr.io", "username": "operator", "tokenSecret": "reg:token"}],
            **fields,
        }
    )  # fmt: skip


async def job(resolver: SecretResolver, image: str, auth: dict[str, str] | None = None) -> ContainerSpawn:
    declared = ContainerSpec.model_validate({"image": image, "auth": auth})
    spawn = await resolve_container_spawn(declared, resolver)
    assert spawn is not None
    return spawn


@pytest.mark.scenario("S31")
@pytest.mark.parametrize(
    ("image", "auth", "user"),
    [
        # the job's explicit login wins over the scaler's for the same host
        ("ghcr.io/team/app", {"username": "job", "tokenSecret": "reg:token"}, "job"),
        ("ghcr.io/team/app", None, "operator"),
        ("127.0.0.1:5000/team/app", {"username": "job", "tokenSecret": "reg:token"}, "job"),
        ("127.0.0.1:5000/team/app", None, None),
        ("GHCR.IO/team/app", None, "operator"),
    ],
)
async def test_a_jobs_image_is_pulled_with_its_own_then_the_scalers_then_no_credentials(
    resolver: SecretResolver, image: str, auth: dict[str, str] | None, user: str | None
) -> None:
    allowing = scaler(allowJobImage=True)

    pull = await plan_pull(await job(resolver, image, auth), allowing, allowing.label_sets[0], resolver)

    assert pull is not None
    assert pull.of_job
    assert pull.image.name == image
    assert (pull.auth.username if pull.auth else None) == user


async def test_the_jobs_image_and_credentials_are_left_out_where_the_scaler_does_not_allow_them(
    resolver: SecretResolver,
) -> None:
    strict = scaler()
    wanted = await job(resolver, "ghcr.io/team/app", {"username": "job", "tokenSecret": "reg:token"})

    pull = await plan_pull(wanted, strict, strict.label_sets[0], resolver)

    assert pull is not None
    assert not pull.of_job
    assert pull.image.normalized == OPERATORS
    assert pull.auth is not None
    assert (pull.auth.username, pull.auth.source) == ("operator", "scaler")


async def test_without_any_image_there_is_nothing_to_pull(resolver: SecretResolver) -> None:
    bare = Scaler.model_validate(
        {"name": "metal", "type": "bare-metal", "maxAgents": 1, "labelSets": [{"labels": ["x"]}]}
    )

    assert await plan_pull(None, bare, bare.label_sets[0], resolver) is None


async def test_scaler_credentials_that_cannot_be_resolved_fail_and_never_pull_anonymously(
    resolver: SecretResolver,
) -> None:
    broken = scaler(registryAuth=[{"registry": "ghcr.io", "tokenSecret": "reg:absent"}])

    with pytest.raises(SecretError, match=r"scaler docker: registryAuth\[0\].*reg:absent"):
        await plan_pull(None, broken, broken.label_sets[0], resolver)
