"""`hatchway auth explain`: which credentials a pull uses and why, without showing any."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from hatchway.config.schema import EcrFor
from tests.support.markers import Place, hits, marker
from tests.unit.cli.conftest import Command, Said

IMAGE = "ghcr.io/team/app:1"


@pytest.fixture
def secrets(tmp_path: Path) -> dict[str, str]:
    """Material of every source, each with its name; the files and the helper that hold it."""
    material = {name: marker(name) for name in ("job", "user", "scaler", "entry", "helper")}
    for name in ("job", "user", "scaler"):
        (tmp_path / name).write_text(material[name].replace(":", "-"))
    helper = tmp_path / "docker-credential-lab"
    answer = json.dumps({"Username": "robot", "Secret": material["helper"]})
    helper.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    helper.chmod(0o755)
    return material


@pytest.fixture
def explain(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secrets: dict[str, str]) -> Any:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def call(image: str = IMAGE, *options: str, job: Any = None, docker: Any = None, **scaler: Any) -> Said:
        config = {
            "version": 1,
            "secrets": {"contexts": {"ci": {"type": "file", "path": str(tmp_path), "registries": ["ghcr.io"]}}},
            "scalers": [
                {
                    "name": "docker", "type": "container", "maxAgents": 1, "allowJobImage": True,
                    "useHostDockerConfig": True, "labelSets": [{"labels": ["x"], "image": "nginx"}], **scaler,
                },
                {"name": "metal", "type": "bare-metal", "maxAgents": 1, "labelSets": [{"labels": ["y"]}]},
            ],
        }  # fmt: skip
        (tmp_path / "hatchway.yaml").write_text(json.dumps(config))
        (tmp_path / "config.json").write_text(json.dumps(docker or {}))
        if job is not None:
            (tmp_path / "job.json").write_text(json.dumps(job))
            options = (*options, "--job", str(tmp_path / "job.json"))
        return command("auth", "explain", image, "--config", str(tmp_path / "hatchway.yaml"), *options)

    return call


def serving(said: Said) -> dict[str, str]:
    """Source to verdict, of the only scaler."""
    (answer,) = said.object["scalers"]
    return {source["source"]: source["verdict"] for source in answer["sources"]}


AUTH = {"usernameSecret": "ci:user", "tokenSecret": "ci:job"}
OWN = [{"registry": "ghcr.io", "username": "operator", "tokenSecret": "ci:scaler"}]


@pytest.mark.scenario("S41")
def test_every_source_says_its_verdict_and_none_shows_its_material(explain: Any, secrets: dict[str, str]) -> None:
    entry = {"ghcr.io/team": {"auth": base64.b64encode(f"host:{secrets['entry']}".encode()).decode()}}
    everything = {"registryAuth": OWN, "ecrFor": EcrFor.ALL_IMAGES.value}
    said = [
        explain(IMAGE, *options, job={"image": IMAGE, "auth": AUTH}, docker=docker, **everything)
        for options in ((), ("--json",))
        for docker in ({"auths": entry}, {"credsStore": "lab"}, {"credHelpers": {"ghcr.io": "lab"}})
    ]

    assert {one.code for one in said} == {0}
    assert "pulls with those of the source job" in said[0].out
    assert serving(said[-1]) == {
        "job": "serves", "registryAuth": "would serve", "docker config": "would serve", "ecr": "nothing",
        "anonymous": "would serve",
    }  # fmt: skip
    shown = Place("shown", {str(number): f"{one.out}{one.err}".encode() for number, one in enumerate(said)})
    assert hits([shown], {"the control": "docker-credential-lab"})
    assert hits([shown], secrets) == []


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("place", ["entry", "entry of a path", "helper", "identity token"])
def test_a_user_of_the_docker_config_is_not_shown_where_it_may_be_a_token(
    explain: Any, tmp_path: Path, place: str, options: tuple[str, ...]
) -> None:
    """Some registries take a token for the user, with anything for the password."""
    token = marker("user").replace(":", "-")
    helper = tmp_path / "docker-credential-token"
    helper.write_text(f"""#!/bin/sh\necho '{json.dumps({"Username": token, "Secret": "x-oauth-basic"})}'\n""")
    helper.chmod(0o755)
    entry = {"auth": base64.b64encode(f"{token}:x-oauth-basic".encode()).decode()}
    docker = {
        "entry": {"auths": {"ghcr.io": entry}}, "entry of a path": {"auths": {"ghcr.io/team": entry}},
        "helper": {"credsStore": "token"}, "identity token": {"auths": {"ghcr.io": {**entry, "identitytoken": "x"}}},
    }  # fmt: skip

    said = explain(IMAGE, *options, docker=docker[place])

    assert said.code == 0
    assert "docker config" in said.out
    assert hits([Place("shown", {"said": f"{said.out}{said.err}".encode()})], {"the user": token}) == []


@pytest.mark.parametrize("user", ["AWS", "oauth2accesstoken", "_json_key", "00000000-0000-0000-0000-000000000000"])
def test_a_user_that_stands_for_a_kind_of_password_is_shown(explain: Any, user: str) -> None:
    entry = {"ghcr.io": {"auth": base64.b64encode(f"{user}:secret".encode()).decode()}}

    assert f"user {user}" in explain(IMAGE, docker={"auths": entry}).out


@pytest.mark.parametrize(
    ("job", "keys", "docker", "serves"),
    [
        ({"image": IMAGE, "auth": AUTH}, {"registryAuth": OWN}, {"credsStore": "lab"}, "job"),
        ({"labels": ["x"], "container": {"image": IMAGE, "auth": AUTH}}, {}, {}, "job"),
        ({"labels": ["x"], "container": IMAGE}, {"registryAuth": OWN}, {}, "registryAuth"),
        (None, {"registryAuth": OWN}, {"credsStore": "lab"}, "registryAuth"),
        (None, {}, {"credsStore": "lab"}, "docker config"),
        (None, {"useHostDockerConfig": False}, {"credsStore": "lab"}, "anonymous"),
        (None, {}, {}, "anonymous"),
        ({"image": "ghcr.io/team/other", "auth": AUTH}, {}, {}, "anonymous"),
    ],
)
def test_the_source_that_serves_is_named(explain: Any, job: Any, keys: Any, docker: Any, serves: str) -> None:
    said = explain(IMAGE, "--json", job=job, docker=docker, **keys)

    assert said.code == 0
    assert said.object["scalers"][0]["serves"] == serves


def test_a_source_that_fails_stands_in_the_way_and_says_why(explain: Any, secrets: dict[str, str]) -> None:
    said = explain(IMAGE, job={"image": IMAGE, "auth": {"tokenSecret": "ci:absent"}}, docker={"credsStore": "lab"})

    assert said.code == 1
    assert "fails before the registry is asked" in said.out
    assert "container.auth.tokenSecret" in said.out
    assert "would serve" in said.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scaler", "absent"), "no container scaler absent"),
        (("--scaler", "metal"), "no container scaler metal"),
        (("--job", "/nonexistent"), "cannot read /nonexistent"),
    ],
)
def test_what_cannot_be_explained_is_bad_input(explain: Any, options: tuple[str, ...], words: str) -> None:
    said = explain(IMAGE, *options)

    assert (said.code, said.out) == (2, "")
    assert words in said.err


@pytest.mark.parametrize("job", [[], "x", {"image": IMAGE, "auth": {"tokenValue": "hunter2"}}, {"labels": "hunter2"}])
def test_a_job_that_is_none_is_refused_without_being_quoted(explain: Any, job: Any) -> None:
    said = explain(IMAGE, job=job)

    assert (said.code, said.out) == (2, "")
    assert "hunter2" not in said.err


def test_without_a_configuration_it_says_what_is_missing(command: Command) -> None:
    said = command("auth", "explain", IMAGE)

    assert said.code == 2
    assert "DATABASE_URL" in said.err


def test_a_job_that_is_nested_without_end_is_no_json(explain: Any, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 60_000)

    said = explain(IMAGE, "--job", str(tmp_path / "deep.json"))

    assert (said.code, "deep.json is not JSON" in said.err) == (2, True)
