"""A job's registry credentials: by reference, for the registry of its image, complete, and never in the open."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from hatchway.errors import AuthError, HatchwayError, SecretError, SecretNotAllowed
from hatchway.model import ContainerSpec, ProvisionRequest
from hatchway.registry.auth import (
    RegistryAuth,
    check_container_auth,
    resolve_container_registry_auth,
    resolve_container_spawn,
)
from hatchway.secrets.resolver import SecretResolver

IMAGE = "127.0.0.1:5000/team/app:1"


def container(auth: dict[str, Any] | None = None, **fields: Any) -> ContainerSpec:
    fields = fields or {"image": IMAGE}
    return ContainerSpec.model_validate({**fields, **({"auth": auth} if auth is not None else {})})


async def test_no_container_and_no_declared_auth_have_no_credentials(resolver: SecretResolver) -> None:
    assert await resolve_container_registry_auth(None, resolver) is None
    assert await resolve_container_registry_auth(container(), resolver) is None


@pytest.mark.scenario("S31")
@pytest.mark.parametrize(
    ("names", "username"),
    [
        ({}, "x-access-token"),
        ({"usernameSecret": "reg:user"}, "robot"),
        ({"username": "alice"}, "alice"),
        ({"username": "alice", "usernameSecret": "reg:user"}, "alice"),
    ],
)
async def test_the_user_name_is_the_plain_one_then_the_secret_then_the_default(
    resolver: SecretResolver, names: dict[str, str], username: str
) -> None:
    auth = await resolve_container_registry_auth(container({**names, "tokenSecret": "reg:token"}), resolver)

    assert auth is not None
    assert (auth.registry_host, auth.username, auth.token) == ("127.0.0.1:5000", username, "t0ken-value")
    assert (auth.source, auth.identity_token) == ("job", False)


async def test_the_token_user_marks_an_identity_token(resolver: SecretResolver) -> None:
    declared = container({"usernameSecret": "reg:idtoken-user", "tokenSecret": "reg:token"})

    auth = await resolve_container_registry_auth(declared, resolver)

    assert auth is not None
    assert auth.identity_token


@pytest.mark.scenario("S30")
@pytest.mark.parametrize("declared", [None, "docker.io", "index.docker.io", "https://index.docker.io/v1/"])
@pytest.mark.parametrize("image", ["nginx", "docker.io/library/nginx", "registry-1.docker.io/library/nginx:1"])
async def test_the_names_of_docker_hub_are_one_registry(
    resolver: SecretResolver, declared: str | None, image: str
) -> None:
    auth = {"tokenSecret": "hub:token", **({"registry": declared} if declared else {})}

    found = await resolve_container_registry_auth(container(auth, image=image), resolver)

    assert found is not None
    assert found.registry_host == "docker.io"


async def test_a_dockerfile_has_the_credentials_of_the_registry_it_names_and_no_spawn(resolver: SecretResolver) -> None:
    declared = container({"registry": "ghcr.io", "tokenSecret": "reg:token"}, dockerfile="Dockerfile")

    auth = await resolve_container_registry_auth(declared, resolver)

    assert auth is not None
    assert auth.registry_host == "ghcr.io"
    assert await resolve_container_spawn(declared, resolver) is None


async def test_no_container_has_no_spawn(resolver: SecretResolver) -> None:
    assert await resolve_container_spawn(None, resolver) is None


async def test_a_spawn_has_image_credentials_and_environment(resolver: SecretResolver) -> None:
    declared = container({"tokenSecret": "reg:token"}, image=IMAGE, env={"CI": "1", "NPM": {"secret": "env:npm-token"}})

    spawn = await resolve_container_spawn(declared, resolver)

    assert spawn is not None
    assert spawn.image.normalized == IMAGE
    assert spawn.auth is not None
    assert spawn.env.values == {"CI": "1", "NPM": "npm-value"}
    assert spawn.env.secret_values == {"npm-value"}


@pytest.mark.parametrize(
    ("auth", "fields", "error", "words"),
    [
        ({}, {}, AuthError, ["container.auth.tokenSecret", "required"]),
        ({"username": "alice"}, {}, AuthError, ["container.auth.tokenSecret", "required"]),
        ({"username": "", "tokenSecret": "reg:token"}, {}, AuthError, ["container.auth.username", "empty"]),
        ({"username": "a:b", "tokenSecret": "reg:token"}, {}, AuthError, ["container.auth.username", "colon"]),
        ({"usernameSecret": "reg:colon", "tokenSecret": "reg:token"}, {}, AuthError, ["usernameSecret", "colon"]),
        ({"registry": "ghcr.io", "tokenSecret": "reg:token"}, {}, AuthError, ["ghcr.io", "127.0.0.1:5000"]),
        ({"registry": "127.0.0.1", "tokenSecret": "reg:token"}, {}, AuthError, ["container.auth.registry"]),
        ({"registry": "https://x", "tokenSecret": "reg:token"}, {}, AuthError, ["container.auth.registry", "scheme"]),
        ({"tokenSecret": "nope:token"}, {}, SecretError, ["container.auth.tokenSecret", "nope", "reg"]),
        ({"tokenSecret": "reg:absent"}, {}, SecretError, ["container.auth.tokenSecret", "reg:absent", "not exist"]),
        ({"tokenSecret": "hub:token"}, {}, SecretNotAllowed, ["hub:token", "127.0.0.1:5000", "index.docker.io"]),
        ({"tokenSecret": "env:npm-token"}, {}, SecretNotAllowed, ["env:npm-token", "127.0.0.1:5000"]),
        ({"tokenSecret": "reg:token"}, {"image": "evil.example/x"}, SecretNotAllowed, ["reg:token", "evil.example"]),
        (
            {"registry": "evil.example", "tokenSecret": "reg:token"}, {"dockerfile": "Dockerfile"},
            SecretNotAllowed, ["reg:token", "evil.example"],
        ),
    ],
)  # fmt: skip
async def test_a_declaration_that_cannot_be_served_says_its_field_and_never_a_value(
    resolver: SecretResolver, auth: dict[str, Any], fields: dict[str, Any], error: type[HatchwayError], words: list[str]
) -> None:
    with pytest.raises(error) as refused:
        await resolve_container_registry_auth(container(auth, **fields), resolver)

    assert type(refused.value) is error
    assert all(word in str(refused.value) for word in words)
    assert "t0ken-value" not in str(refused.value)


async def test_a_registry_secret_is_not_for_an_environment(resolver: SecretResolver) -> None:
    declared = container(image=IMAGE, env={"LOOT": {"secret": "reg:token"}})

    with pytest.raises(SecretNotAllowed, match=r"container\.env\.LOOT.*reg:token"):
        await resolve_container_spawn(declared, resolver)


@pytest.mark.parametrize("field", ["usernameValue", "tokenValue"])
def test_material_in_a_request_is_refused_with_the_advice_to_rotate_it(field: str) -> None:
    request = {"labels": ["x"], "container": {"image": IMAGE, "auth": {field: "hunter2"}}}

    with pytest.raises(ValidationError) as refused:
        ProvisionRequest.model_validate(request)

    assert "rotate" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("reference", ["token", ":token", "reg:", "", "reg token:x"])
def test_an_unqualified_reference_is_refused_by_the_request(reference: str) -> None:
    with pytest.raises(ValidationError):
        container({"tokenSecret": reference})


async def test_what_temporal_is_told_names_references_and_no_material(resolver: SecretResolver) -> None:
    declared = container(
        {"usernameSecret": "reg:user", "tokenSecret": "reg:token"},
        image=IMAGE, env={"NPM": {"secret": "env:npm-token"}},
    )  # fmt: skip

    redacted = await check_container_auth(declared, resolver)

    assert redacted.image == IMAGE
    assert redacted.registry == "127.0.0.1:5000"
    assert redacted.references == {
        "container.auth.usernameSecret": "reg:user",
        "container.auth.tokenSecret": "reg:token",
        "container.env.NPM": "env:npm-token",
    }
    assert not any(value in redacted.model_dump_json() for value in ("robot", "t0ken-value", "npm-value"))


async def test_the_check_resolves_everything_that_the_spawn_will(resolver: SecretResolver) -> None:
    for broken in (
        container({"tokenSecret": "reg:absent"}),
        container(image=IMAGE, env={"NPM": {"secret": "env:absent"}}),
        container(dockerfile="Dockerfile", env={"NPM": {"secret": "env:absent"}}),
    ):
        with pytest.raises(SecretError):
            await check_container_auth(broken, resolver)


async def test_the_check_of_no_container_finds_nothing(resolver: SecretResolver) -> None:
    redacted = await check_container_auth(None, resolver)

    assert (redacted.image, redacted.registry, redacted.references) == (None, None, {})


@pytest.mark.scenario("S41")
async def test_no_representation_shows_the_token(resolver: SecretResolver) -> None:
    declared = container({"tokenSecret": "reg:token"}, image=IMAGE, env={"NPM": {"secret": "env:npm-token"}})

    spawn = await resolve_container_spawn(declared, resolver)

    shown = f"{spawn!r} {spawn} {RegistryAuth('h', 'u', 't0ken-value')!r}"
    assert "t0ken-value" not in shown
    assert "npm-value" not in shown


@pytest.mark.parametrize(
    ("names", "secrets"),
    [
        ({}, {"t0ken-value"}),
        ({"username": "alice"}, {"t0ken-value"}),
        ({"usernameSecret": "reg:user"}, {"t0ken-value", "robot"}),
        ({"username": "alice", "usernameSecret": "reg:user"}, {"t0ken-value"}),
    ],
)
async def test_what_came_by_reference_is_what_nobody_may_quote(
    resolver: SecretResolver, names: dict[str, str], secrets: set[str]
) -> None:
    auth = await resolve_container_registry_auth(container({**names, "tokenSecret": "reg:token"}), resolver)

    assert auth is not None
    assert auth.secret_values == secrets
