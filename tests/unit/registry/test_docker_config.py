"""Which entry of a docker config is for an image: Docker's own rules, and the paths of containers-auth.json(5)."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import structlog

from hatchway.errors import AuthError
from hatchway.registry.docker_config import DockerConfig, docker_config_credentials
from hatchway.registry.reference import parse_reference
from tests.unit.registry.rig import MakeHelper

HUB = "https://index.docker.io/v1/"
PASSWORD = "pa55-word"


def login(user: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()}


def auths(*keys: str) -> dict[str, Any]:
    """An entry for each key, whose user is `u0`, `u1`, … in this order."""
    return {"auths": {key: login(f"u{number}") for number, key in enumerate(keys)}}


IN_THE_FILE: list[tuple[dict[str, Any], str, str | None]] = [
    # config, image, the user whose entry it is; None: nothing there is for it
    ({}, "ghcr.io/a/b", None),
    ({"auths": {}}, "ghcr.io/a/b", None),
    ({"auths": None}, "ghcr.io/a/b", None),
    (auths("ghcr.io"), "ghcr.io/a/b", "u0"),
    (auths("ghcr.io"), "GHCR.io/a/b", "u0"),
    (auths("GHCR.IO"), "ghcr.io/a/b", "u0"),
    (auths("ghcr.io"), "ghcr.io:443/a/b", None),
    (auths("ghcr.io"), "ghcr.io.evil.example/a/b", None),
    (auths("ghcr.io"), "evil-ghcr.io/a/b", None),
    (auths("ghcr.io"), "nginx", None),
    (auths("https://ghcr.io"), "ghcr.io/a/b", "u0"),
    (auths("https://ghcr.io/"), "ghcr.io/a/b", "u0"),
    (auths("http://ghcr.io"), "ghcr.io/a/b", "u0"),
    (auths("https://ghcr.io/v2/"), "ghcr.io/a/b", "u0"),
    (auths("https://ghcr.io/v1/"), "ghcr.io/a/b", "u0"),
    (auths("reg.local:5000"), "reg.local:5000/a", "u0"),
    (auths("reg.local:5000"), "reg.local/a", None),
    (auths("reg.local"), "reg.local:5000/a", None),
    (auths("localhost:5000"), "localhost:5000/x:1", "u0"),
    (auths("127.0.0.1:5000"), "127.0.0.1:5000/x", "u0"),
    (auths("[::1]:5000"), "[::1]:5000/x", "u0"),
    # the many names of Docker Hub
    (auths(HUB), "nginx", "u0"),
    (auths(HUB), "docker.io/library/nginx", "u0"),
    (auths(HUB), "index.docker.io/team/app", "u0"),
    (auths(HUB), "registry-1.docker.io/team/app", "u0"),
    (auths("index.docker.io"), "nginx", "u0"),
    (auths("docker.io"), "nginx", "u0"),
    (auths("registry-1.docker.io"), "nginx", "u0"),
    (auths("https://index.docker.io/v2/"), "nginx", "u0"),
    (auths(HUB, "docker.io"), "nginx", "u0"),
    (auths("docker.io", HUB), "nginx", "u0"),
    (auths(HUB), "ghcr.io/a/b", None),
    # the longest path that leads to the image, at a slash
    (auths("ghcr.io", "ghcr.io/team"), "ghcr.io/team/app", "u1"),
    (auths("ghcr.io/team", "ghcr.io"), "ghcr.io/team/app", "u0"),
    (auths("ghcr.io", "ghcr.io/team"), "ghcr.io/other/app", "u0"),
    (auths("ghcr.io", "ghcr.io/team", "ghcr.io/team/app"), "ghcr.io/team/app", "u2"),
    (auths("ghcr.io", "ghcr.io/team", "ghcr.io/team/app"), "ghcr.io/team/app/part", "u2"),
    (auths("ghcr.io", "ghcr.io/team", "ghcr.io/team/app"), "ghcr.io/team/app2", "u1"),
    (auths("ghcr.io/team"), "ghcr.io/team-two/app", None),
    (auths("ghcr.io/team/"), "ghcr.io/team/app", "u0"),
    (auths("ghcr.io/team"), "ghcr.io/team", "u0"),
    (auths("https://ghcr.io/team"), "ghcr.io/team/app", "u0"),
    (auths("docker.io/library"), "nginx", "u0"),
    (auths("docker.io/library/nginx"), "index.docker.io/nginx:1", "u0"),
    (auths("docker.io/team"), "nginx", None),
    (auths("reg.local:5000/a", "reg.local:5000"), "reg.local:5000/a/b", "u0"),
    # what stands in an entry
    ({"auths": {"ghcr.io": {}}}, "ghcr.io/a", None),
    ({"auths": {"ghcr.io": None}}, "ghcr.io/a", None),
    ({"auths": {"ghcr.io": {"auth": ""}}}, "ghcr.io/a", None),
    ({"auths": {"ghcr.io": {"email": "a@b.c"}}}, "ghcr.io/a", None),
    ({"auths": {"ghcr.io/a": {}, "ghcr.io": login("u0")}}, "ghcr.io/a/b", "u0"),
    ({"auths": {"ghcr.io": {"username": "u0", "password": PASSWORD}}}, "ghcr.io/a", "u0"),
    ({"auths": {"ghcr.io": {**login("u0"), "username": "u1", "password": "x"}}}, "ghcr.io/a", "u0"),
    ({"auths": {"ghcr.io": {**login("u0"), "registrytoken": "x"}}}, "ghcr.io/a", "u0"),
]

BROKEN: list[tuple[Any, str | None]] = [
    # the file's content, or the entry of ghcr.io in it; a word of the reason
    ("", "not JSON"),
    (f'{{"auths": {{"ghcr.io": {{"auth": "{PASSWORD}"', "not JSON"),
    ("[]", "not a JSON object"),
    (f'"{PASSWORD}"', "not a JSON object"),
    ('{"auths": []  }', None),
    ('{"auths": ["ghcr.io"]}', "auths is not a JSON object"),
    ('{"credHelpers": "ecr-login"}', "credHelpers is not a JSON object"),
    ({"auth": f"{PASSWORD}!"}, "not base64"),
    ({"auth": base64.b64encode(PASSWORD.encode()).decode()}, "not base64 of USER:PASSWORD"),
    ({"auth": base64.b64encode(b"\xff\xfe:x").decode()}, "not base64"),
    ({"auth": ["x"]}, "not base64"),
    ({"auth": base64.b64encode(b"user:").decode()}, "only one of"),
    ({"auth": base64.b64encode(f":{PASSWORD}".encode()).decode()}, "only one of"),
    ({"username": "bob"}, "only one of"),
    ({"username": {"x": PASSWORD}, "password": "x"}, "not text"),
    ({"username": "bo\nb", "password": PASSWORD}, "cannot carry"),
    ({"registrytoken": PASSWORD}, "registrytoken"),
]


def environment(directory: Path, content: Any, path: str = "/usr/bin:/bin") -> dict[str, str]:
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / "config.json").write_text(text)
    return {"DOCKER_CONFIG": str(directory), "PATH": path}


@pytest.mark.scenario("S29")
@pytest.mark.scenario("S30")
@pytest.mark.parametrize(("config", "image", "user"), IN_THE_FILE)
async def test_an_entry_is_found_by_the_longest_path_and_by_every_spelling_of_its_registry(
    tmp_path: Path, config: dict[str, Any], image: str, user: str | None
) -> None:
    found, why = await docker_config_credentials(parse_reference(image), environment(tmp_path, config))

    assert (found.username if found else None) == user
    assert str(tmp_path) in why
    if found is not None:
        assert (found.token, found.identity_token) == (PASSWORD, False)
        assert found.registry_host == parse_reference(image).registry


@pytest.mark.parametrize(("content", "reason"), BROKEN)
async def test_a_file_that_cannot_be_meant_is_told_with_its_path_and_without_its_content(
    tmp_path: Path, content: Any, reason: str | None
) -> None:
    whole = content if isinstance(content, str) else {"auths": {"ghcr.io": content}}
    environ = environment(tmp_path, whole)
    if reason is None:  # an empty list is what some tools write for "none"
        assert (await docker_config_credentials(parse_reference("ghcr.io/a"), environ))[0] is None
        return

    with pytest.raises(AuthError, match=reason) as refused:
        await docker_config_credentials(parse_reference("ghcr.io/a"), environ)

    assert str(tmp_path) in str(refused.value)
    assert PASSWORD not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("username", ["<token>", ""])
async def test_an_identity_token_is_one(tmp_path: Path, username: str) -> None:
    entry: dict[str, str] = {"identitytoken": PASSWORD}
    if username:
        entry["auth"] = base64.b64encode(f"{username}:".encode()).decode()

    found, _ = await docker_config_credentials(
        parse_reference("ghcr.io/a"), environment(tmp_path, {"auths": {"ghcr.io": entry}})
    )

    assert found is not None
    assert (found.identity_token, found.token) == (True, PASSWORD)


async def test_a_password_keeps_its_colons_and_loses_the_padding_of_docker(tmp_path: Path) -> None:
    entry = {"auth": base64.b64encode(b"bob:a:b\0\0").decode()}

    found, _ = await docker_config_credentials(
        parse_reference("ghcr.io/a"), environment(tmp_path, {"auths": {"ghcr.io": entry}})
    )

    assert found is not None
    assert found.token == "a:b"


async def test_the_file_is_the_one_of_the_workers_user(tmp_path: Path) -> None:
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text(json.dumps(auths("ghcr.io")))
    image = parse_reference("ghcr.io/a")

    at_home, _ = await docker_config_credentials(image, {"HOME": str(tmp_path)})
    elsewhere, why = await docker_config_credentials(image, {"HOME": str(tmp_path), "DOCKER_CONFIG": "/nonexistent"})

    assert at_home is not None
    assert elsewhere is None
    assert "no docker config" in why


async def test_a_file_that_grows_without_end_or_is_none_is_not_read(tmp_path: Path) -> None:
    image = parse_reference("ghcr.io/a")
    (tmp_path / "config.json").write_bytes(b" " * (1024 * 1024 + 1))
    with pytest.raises(AuthError, match="larger than"):
        await docker_config_credentials(image, {"DOCKER_CONFIG": str(tmp_path)})

    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(AuthError, match="cannot be read"):
        await docker_config_credentials(image, {"DOCKER_CONFIG": str(tmp_path)})


ASKED: list[tuple[dict[str, Any], str, list[str], str | None]] = [
    # config, image, the helpers asked in order, who serves: a helper's name or the user of an entry
    ({"credsStore": "store"}, "ghcr.io/a/b", ["store"], "store"),
    ({"credsStore": "store"}, "nginx", ["store"], "store"),
    ({"credHelpers": {"ghcr.io": "one"}}, "ghcr.io/a/b", ["one"], "one"),
    ({"credHelpers": {"ghcr.io": "one"}}, "quay.io/a/b", [], None),
    ({"credHelpers": {"GHCR.IO": "one"}}, "ghcr.io/a/b", ["one"], "one"),
    ({"credHelpers": {"docker.io": "one"}}, "nginx", ["one"], "one"),
    ({"credHelpers": {HUB: "one"}}, "nginx", ["one"], "one"),
    ({"credHelpers": {"index.docker.io": "one"}}, "docker.io/a/b", ["one"], "one"),
    ({"credHelpers": {"reg.local:5000": "one"}}, "reg.local:5000/a", ["one"], "one"),
    ({"credHelpers": {"reg.local": "one"}}, "reg.local:5000/a", [], None),
    # the registry's own helper is the only one that is asked
    ({"credHelpers": {"ghcr.io": "one"}, "credsStore": "store"}, "ghcr.io/a", ["one"], "one"),
    ({"credHelpers": {"ghcr.io": "empty"}, "credsStore": "store"}, "ghcr.io/a", ["empty"], None),
    ({"credHelpers": {"ghcr.io": "empty"}, **auths("ghcr.io")}, "ghcr.io/a", ["empty"], None),
    ({"credHelpers": {"ghcr.io": "one"}, **auths("ghcr.io")}, "ghcr.io/a", ["one"], "one"),
    ({"credHelpers": {"ghcr.io": "one"}, "credsStore": "store"}, "quay.io/a", ["store"], "store"),
    # the store comes before what stands in the file, which serves where the store has nothing
    ({"credsStore": "store", **auths("ghcr.io")}, "ghcr.io/a", ["store"], "store"),
    ({"credsStore": "empty", **auths("ghcr.io")}, "ghcr.io/a", ["empty"], "u0"),
    ({"credsStore": "empty", "auths": {"ghcr.io": {}}}, "ghcr.io/a", ["empty"], None),
    ({"credsStore": "empty"}, "ghcr.io/a", ["empty"], None),
    ({"credsStore": "", **auths("ghcr.io")}, "ghcr.io/a", [], "u0"),
    # a path is more than a registry
    ({"credsStore": "store", **auths("ghcr.io/team")}, "ghcr.io/team/a", [], "u0"),
    ({"credHelpers": {"ghcr.io": "one"}, **auths("ghcr.io/team")}, "ghcr.io/team/a", [], "u0"),
    ({"credHelpers": {"ghcr.io": "one"}, **auths("ghcr.io/team")}, "ghcr.io/other/a", ["one"], "one"),
    ({"credHelpers": {"ghcr.io/team": "one"}, **auths("ghcr.io")}, "ghcr.io/team/a", ["one"], "one"),
    ({"credHelpers": {"ghcr.io/team": "one"}, **auths("ghcr.io/team")}, "ghcr.io/team/a", ["one"], "one"),
    ({"credHelpers": {"ghcr.io/team": "one"}, **auths("ghcr.io/team/a")}, "ghcr.io/team/a", [], "u0"),
    # a helper that is not installed is passed over
    ({"credHelpers": {"ghcr.io": "absent"}}, "ghcr.io/a", [], None),
    ({"credsStore": "absent", **auths("ghcr.io")}, "ghcr.io/a", [], "u0"),
    ({"credsStore": "absent"}, "ghcr.io/a", [], None),
]


@pytest.mark.scenario("S31")
@pytest.mark.scenario("S33")
@pytest.mark.parametrize(("config", "image", "asked", "served"), ASKED)
async def test_helpers_and_entries_are_asked_in_dockers_order(
    *,
    tmp_path: Path,
    make_helper: MakeHelper,
    config: dict[str, Any],
    image: str,
    asked: list[str],
    served: str | None,
) -> None:
    journal = tmp_path / "journal"
    for name in ("one", "store"):
        make_helper(name, f'read server; echo {name} "$server" >> {journal}', answer=(name, PASSWORD))
    path = make_helper(
        "empty", f"read server; echo empty \"$server\" >> {journal}; echo 'credentials not found'; exit 1"
    )

    found, why = await docker_config_credentials(parse_reference(image), environment(tmp_path, config, path))

    said = [line.split() for line in journal.read_text().splitlines()] if journal.exists() else []
    assert [name for name, _ in said] == asked
    assert {server for _, server in said} <= {parse_reference(image).auth_key}
    assert (found.username if found else None) == served
    assert PASSWORD not in why


@pytest.mark.scenario("S33")
async def test_a_helper_that_is_not_installed_is_warned_of(tmp_path: Path) -> None:
    config = DockerConfig({"credsStore": "absent"}, "the-file")
    with structlog.testing.capture_logs() as logged:
        found, why = await config.credentials(parse_reference("ghcr.io/a"), {"PATH": str(tmp_path)})

    assert found is None
    assert "docker-credential-absent is not on this worker's PATH" in why
    assert [entry["log_level"] for entry in logged] == ["warning"]


@pytest.mark.parametrize("brackets", ["[" * 60_000, '{"auths":' * 60_000, "[" * 60_000 + "]" * 60_000])
async def test_a_config_that_is_nested_without_end_is_refused_by_its_name(tmp_path: Path, brackets: str) -> None:
    environ = environment(tmp_path, {})
    (tmp_path / "config.json").write_text(brackets)

    with pytest.raises(AuthError, match=r"config\.json is not JSON"):
        await docker_config_credentials(parse_reference("ghcr.io/a"), environ)


@pytest.mark.parametrize("helper", ["../../bin/sh", 7, {"a": 1}])
async def test_what_names_no_helper_is_refused_with_its_place(tmp_path: Path, helper: Any) -> None:
    environ = environment(tmp_path, {"credHelpers": {"ghcr.io": helper}})

    with pytest.raises(AuthError, match=r"credHelpers\[ghcr.io\]"):
        await docker_config_credentials(parse_reference("ghcr.io/a"), environ)
