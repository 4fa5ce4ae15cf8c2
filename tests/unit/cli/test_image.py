"""`hatchway image parse`."""

from __future__ import annotations

import pytest

from tests.unit.cli.conftest import Command

DIGEST = "sha256:" + "0" * 64
HUB = "https://index.docker.io/v1/"


@pytest.mark.parametrize(
    ("reference", "registry", "repository", "tag", "digest", "key"),
    [
        ("nginx", "docker.io", "library/nginx", "latest", None, HUB),
        ("ghcr.io/acme/ci:2", "ghcr.io", "acme/ci", "2", None, "ghcr.io"),
        (f"127.0.0.1:5000/a@{DIGEST}", "127.0.0.1:5000", "a", None, DIGEST, "127.0.0.1:5000"),
    ],
)
def test_a_reference_is_taken_apart_for_programs(
    command: Command, reference: str, registry: str, repository: str, tag: str | None, digest: str | None, key: str
) -> None:
    said = command("image", "parse", reference, "--json")

    assert said.code == 0
    found = said.object
    assert set(found) == {"registry", "repository", "tag", "digest", "auth_key", "normalized"}
    assert (found["registry"], found["repository"], found["tag"]) == (registry, repository, tag)
    assert (found["digest"], found["auth_key"]) == (digest, key)


def test_a_reference_is_shown_to_people_without_empty_fields(command: Command) -> None:
    said = command("image", "parse", "nginx")

    assert said.code == 0
    assert "library/nginx" in said.out
    assert "digest" not in said.out


def test_a_bad_reference_is_bad_input_and_is_not_quoted(command: Command) -> None:
    said = command("image", "parse", "https://user:hunter2@registry.example.com/a")

    assert (said.code, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert "hunter2" not in said.err


def test_a_bad_reference_as_json_is_an_error_object(command: Command) -> None:
    said = command("image", "parse", "Upper/Case", "--json")

    assert said.code == 2
    assert said.error["error"] == "invalid_reference"
