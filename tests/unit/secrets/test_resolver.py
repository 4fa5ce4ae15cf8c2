"""A secret is served to the purpose that its context is kept for, from inside its directory, and never shown."""

from __future__ import annotations

import copy
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from hatchway.config.schema import SecretsConfig
from hatchway.errors import SecretError, SecretNotAllowed
from hatchway.model import EnvSecret
from hatchway.secrets.env import resolve_env
from hatchway.secrets.providers import MAX_SECRET_BYTES
from hatchway.secrets.resolver import Purpose, Secret, SecretResolver

FIELD = "container.auth.tokenSecret"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A secret directory with an outside next to it that nothing may reach."""
    inside = tmp_path / "secrets"
    (inside / "team").mkdir(parents=True)
    (tmp_path / "secrets-of-others").mkdir()
    (tmp_path / "outside").write_text("loot")
    (tmp_path / "secrets-of-others" / "x").write_text("loot")
    (inside / "token").write_text("value\n")
    (inside / "team" / "token").write_text("team value")
    return inside


def resolver(directory: Path | str = "/", environ: dict[str, str] | None = None, **context: Any) -> SecretResolver:
    config = SecretsConfig.model_validate(
        {"contexts": {"f": {"type": "file", "path": str(directory), **context}, "e": {"type": "env", **context}}}
    )
    return SecretResolver(config, environ or {})


async def served(resolver: SecretResolver, reference: str, purpose: Purpose = Purpose.env) -> str:
    return (await resolver.resolve(reference, field=FIELD, purpose=purpose)).reveal()


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (b"value", "value"), (b"value\n", "value"), (b"value\r\n", "value"), (b"value\n\n", "value\n"),
        (b"value\r", "value\r"), (b" value \n", " value "), (b"a\nb\n", "a\nb"), ("wért".encode(), "wért"),
        (b"x" * MAX_SECRET_BYTES, "x" * MAX_SECRET_BYTES),
    ],
)  # fmt: skip
async def test_a_file_is_served_without_its_one_trailing_newline(directory: Path, written: bytes, value: str) -> None:
    (directory / "s").write_bytes(written)

    assert await served(resolver(directory), "f:s") == value


async def test_a_name_may_have_directories_and_colons(directory: Path) -> None:
    (directory / "a:b").write_text("colon")

    assert await served(resolver(directory), "f:team/token") == "team value"
    assert await served(resolver(directory), "f:a:b") == "colon"


async def test_links_are_followed_inside_the_directory(directory: Path) -> None:
    # What a mounted Kubernetes secret looks like: token -> ..data/token, ..data -> ..2024_01
    (directory / "..2024_01").mkdir()
    (directory / "..2024_01" / "k8s").write_text("mounted")
    (directory / "..data").symlink_to("..2024_01")
    (directory / "k8s").symlink_to("..data/k8s")

    assert await served(resolver(directory), "f:k8s") == "mounted"


@pytest.mark.parametrize(
    "name",
    ["../outside", "team/../../outside", "/etc/hostname", "..", "team/..", "../secrets-of-others/x", "link", "way/x"],
)
async def test_no_name_and_no_link_leaves_the_directory(directory: Path, name: str) -> None:
    (directory / "link").symlink_to(directory.parent / "outside")
    (directory / "way").symlink_to(directory.parent / "secrets-of-others")

    with pytest.raises(SecretError, match="leaves its directory"):
        await served(resolver(directory), f"f:{name}")


async def test_a_directory_that_is_itself_a_link_is_served(directory: Path) -> None:
    (directory.parent / "alias").symlink_to(directory)

    assert await served(resolver(directory.parent / "alias"), "f:token") == "value"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.write_bytes(b"x" * (MAX_SECRET_BYTES + 1)), "larger than 64 KiB"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "not UTF-8"),
        (lambda path: path.write_bytes(b"a\0b"), "NUL"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"\n"), "is empty"),
    ],
    ids=["absent", "directory", "fifo", "large", "binary", "nul", "empty", "newline"],
)
async def test_a_file_that_is_no_secret_is_refused_by_field_and_reference(
    directory: Path, make: Any, reason: str
) -> None:
    make(directory / "s")

    with pytest.raises(SecretError, match=reason) as refused:
        await served(resolver(directory), "f:s")

    assert FIELD in str(refused.value)
    assert "f:s" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("token", "HATCHWAY_SECRET_TOKEN"),
        ("registry-token", "HATCHWAY_SECRET_REGISTRY_TOKEN"),
        ("a.b_c", "HATCHWAY_SECRET_A_B_C"),
        ("HATCHWAY_SECRET_TOKEN", "HATCHWAY_SECRET_TOKEN"),
        ("HATCHWAY_SECRET_", "HATCHWAY_SECRET_HATCHWAY_SECRET_"),
        ("PATH", "HATCHWAY_SECRET_PATH"),
    ],
)
async def test_a_name_is_served_by_its_prefixed_variable(name: str, variable: str) -> None:
    assert await served(resolver(environ={variable: "value"}), f"e:{name}") == "value"


@pytest.mark.parametrize("name", ["PATH", "DATABASE_URL", "TEMPORAL_API_KEY", "HATCHWAY_HOST_ID", "secret"])
async def test_no_other_variable_of_the_worker_is_served(name: str) -> None:
    environ = {"PATH": "x", "DATABASE_URL": "x", "TEMPORAL_API_KEY": "x", "HATCHWAY_HOST_ID": "x", "secret": "x"}

    with pytest.raises(SecretError, match="HATCHWAY_SECRET_"):
        await served(resolver(environ=environ), f"e:{name}")


@pytest.mark.parametrize(
    ("environ", "name", "reason"),
    [
        ({"HATCHWAY_SECRET_X": ""}, "x", "is empty"),
        ({"HATCHWAY_SECRET_X": "y" * (MAX_SECRET_BYTES + 1)}, "x", "64 KiB"),
        ({}, "a/b", "no variable's"),
        ({}, "x=y", "no variable's"),
    ],
)
async def test_an_unusable_variable_is_refused_with_the_reason(environ: dict[str, str], name: str, reason: str) -> None:
    with pytest.raises(SecretError, match=reason):
        await served(resolver(environ=environ), f"e:{name}")


GHCR, OTHER, ENV = Purpose.registry("ghcr.io"), Purpose.registry("evil.example"), Purpose.env


@pytest.mark.parametrize(
    ("context", "purpose", "allowed"),
    [
        ({}, ENV, True),
        ({}, GHCR, False),
        ({"registries": ["ghcr.io"]}, GHCR, True),
        ({"registries": ["GHCR.IO"]}, GHCR, True),
        ({"registries": ["ghcr.io"]}, Purpose.registry("GHCR.io"), True),
        ({"registries": ["ghcr.io"]}, OTHER, False),
        ({"registries": ["ghcr.io"]}, Purpose.registry("ghcr.io:443"), False),
        ({"registries": ["ghcr.io"]}, ENV, False),
        ({"registries": ["ghcr.io"], "env": True}, ENV, True),
        ({"registries": ["ghcr.io"], "env": True}, GHCR, True),
        ({"registries": ["https://index.docker.io/v1/"]}, Purpose.registry("docker.io"), True),
        ({"registries": ["not a host"]}, GHCR, False),
        ({"env": False}, ENV, False),
        ({"names": ["tok*"]}, ENV, True),
        ({"names": ["other", "token"]}, ENV, True),
        ({"names": ["TOKEN"]}, ENV, False),
        ({"names": ["other-*"]}, ENV, False),
        ({"names": []}, ENV, False),
        ({"registries": ["ghcr.io"], "names": ["other"]}, GHCR, False),
    ],
)
async def test_a_context_serves_only_what_it_is_kept_for(
    directory: Path, context: dict[str, Any], purpose: Purpose, allowed: bool
) -> None:
    secrets = resolver(directory, **context)

    if allowed:
        assert await served(secrets, "f:token", purpose) == "value"
    else:
        with pytest.raises(SecretNotAllowed) as refused:
            await served(secrets, "f:token", purpose)
        assert FIELD in str(refused.value)
        assert "f:token" in str(refused.value)


async def test_a_name_that_is_not_allowed_is_refused_before_it_is_looked_for(directory: Path) -> None:
    with pytest.raises(SecretNotAllowed):
        await served(resolver(directory, names=["a"]), "f:absent")


@pytest.mark.parametrize(
    ("reference", "reason"),
    [("nope:x", "no secret context 'nope'"), ("x", "<context>:<secret-name>"), (":x", "form"), ("f:", "form")],
)
async def test_a_reference_to_nothing_says_what_there_is(directory: Path, reference: str, reason: str) -> None:
    with pytest.raises(SecretError, match=reason) as refused:
        await served(resolver(directory), reference)

    assert FIELD in str(refused.value)


async def test_a_rotated_secret_is_in_force_at_the_next_call(directory: Path) -> None:
    secrets = resolver(directory)
    before = await served(secrets, "f:token")

    (directory / "token").write_text("rotated")

    assert (before, await served(secrets, "f:token")) == ("value", "rotated")


@pytest.mark.scenario("S41")
def test_a_secret_shows_itself_only_when_it_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret("hunter2")

    logging.getLogger("x").warning("%s %r", secret, [secret])

    shown = f"{secret} {secret!r} {secret:>20} {[secret]} {caplog.text} {copy.deepcopy(secret)} {copy.copy(secret)}"
    assert "hunter2" not in shown
    assert secret.reveal() == "hunter2"
    with pytest.raises(TypeError):
        pickle.dumps(secret)


async def test_an_environment_is_resolved_and_its_secret_values_are_known() -> None:
    secrets = resolver(environ={"HATCHWAY_SECRET_TOKEN": "value"})

    env = await resolve_env(
        {"PLAIN": "public", "TOKEN": EnvSecret(secret="e:token")}, secrets, field="scaler x: labelSets[0].env"
    )

    assert env.values == {"PLAIN": "public", "TOKEN": "value"}
    assert env.secret_values == {"value"}
    assert env.references == {"scaler x: labelSets[0].env.TOKEN": "e:token"}
    assert "value" not in repr(env).replace("secret_values", "")


async def test_an_environment_error_names_the_variable() -> None:
    with pytest.raises(SecretError, match=r"container\.env\.TOKEN.*e:absent"):
        await resolve_env({"TOKEN": EnvSecret(secret="e:absent")}, resolver(), field="container.env")
