"""What two keys say about each other, and what would only fail once a job is there, is refused at load."""

from __future__ import annotations

from typing import Any

import pytest

from hatchway.config.checks import check_config
from hatchway.config.document import spell
from hatchway.config.schema import Config

METAL: dict[str, Any] = {"name": "m", "type": "bare-metal", "maxAgents": 1, "labelSets": [{"labels": ["linux"]}]}
DOCKER: dict[str, Any] = {
    "name": "d",
    "type": "container",
    "maxAgents": 1,
    "networkIsolation": False,
    "labelSets": [{"labels": ["linux"], "image": "x"}],
}


def found(*scalers: dict[str, Any], **top: Any) -> dict[str, str]:
    """Path to sentence, for a configuration of these scalers."""
    config = Config.model_validate({"version": 1, "scalers": list(scalers), **top})
    return {spell(path): message for path, message in check_config(config)}


def metal(**fields: Any) -> dict[str, Any]:
    return {**METAL, **fields}


def docker(**fields: Any) -> dict[str, Any]:
    return {**DOCKER, **fields}


def with_set(base: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**base, "labelSets": [{**base["labelSets"][0], **fields}]}


@pytest.mark.parametrize(
    "scaler",
    [
        METAL,
        DOCKER,
        with_set(METAL, user="nobody"),
        with_set(METAL, runAsRoot=True),
        with_set(METAL, command=["agent"], workingDirectory="/srv"),
        with_set(DOCKER, containerSocket=True, capAdd=["NET_ADMIN"], agent="inject", pullPolicy="Always"),
        docker(allowJobImage=True, labelSets=[{"labels": ["linux"]}]),
        metal(platform="windows/amd64"),
        metal(mandatoryLabels=["LINUX"]),
        metal(mandatoryLabels=["kici:os:linux", "kici:arch:arm64"]),
        metal(roles=["build"], mandatoryLabels=["kici:role:build"]),
        metal(adoptionTimeoutSeconds=300, claimTtlSeconds=300, agentTokenTtlSeconds=300),
        metal(orchestratorUrl="http://a:8780, https://b"),
        with_set(METAL, env={"A": "1", "HATCHWAY_AGENT_COMMAND": '["make"]'}),
    ],
)
def test_a_scaler_that_means_what_it_says_is_let_through(scaler: dict[str, Any]) -> None:
    assert found(scaler) == {}


@pytest.mark.parametrize(
    ("scaler", "path", "words"),
    [
        (metal(claimTtlSeconds=299), "claimTtlSeconds", "shorter than adoptionTimeoutSeconds"),
        (metal(agentTokenTtlSeconds=299), "agentTokenTtlSeconds", "shorter than adoptionTimeoutSeconds"),
        (metal(adoptionTimeoutSeconds=301), "adoptionTimeoutSeconds", "claimTtlSeconds (300) is shorter"),
        (metal(platform="linux"), "platform", "linux/amd64"),
        (metal(platform="linux/amd64/v2"), "platform", "linux/amd64"),
        (metal(orchestratorUrl="ws://gateway"), "orchestratorUrl", "http://"),
        (metal(orchestratorUrl="http://a,"), "orchestratorUrl", "http://"),
        (metal(orchestratorUrl="http://u:p@a"), "orchestratorUrl", "user or password"),
        (metal(mandatoryLabels=["gpu"]), "labelSets[0].labels", "lack the gate label gpu"),
        (metal(mandatoryLabels=["kici:role:x"]), "labelSets[0].labels", "lack the gate label kici:role:x"),
        (metal(mandatoryLabels=["kici:arch:arm64"], platform="linux/amd64"), "labelSets[0].labels", "lack the gate"),
        (
            metal(mandatoryLabels=["linux"], labelSets=[{"labels": ["linux"], "excludeLabels": ["Linux"]}]),
            "labelSets[0].excludeLabels", "no job can match",
        ),
        (with_set(METAL, labels=["linux", "KICI:os:linux"]), "labelSets[0].labels[1]", "reserved"),
        (with_set(METAL, labels=["a,b"]), "labelSets[0].labels[0]", "comma"),
        (with_set(METAL, labels=["linux\u200b"]), "labelSets[0].labels[0]", "cannot be seen"),
        (with_set(METAL, labels=["a\nb"]), "labelSets[0].labels[0]", "cannot be seen"),
        (with_set(METAL, excludeLabels=["gpu\x1b[2J"]), "labelSets[0].excludeLabels[0]", "cannot be seen"),
        (metal(roles=["build\u200b"]), "roles[0]", "cannot be seen"),
        (with_set(METAL, env={"KICI_AGENT_ID": "x"}), "labelSets[0].env.KICI_AGENT_ID", "reserved"),
        (with_set(METAL, env={"HATCHWAY_X": "x"}), "labelSets[0].env.HATCHWAY_X", "reserved"),
        (with_set(METAL, env={"A-B": "x"}), "labelSets[0].env.A-B", "no variable name"),
        (with_set(METAL, env={"HATCHWAY_AGENT_COMMAND": "make"}), "labelSets[0].env.HATCHWAY_AGENT_COMMAND", "JSON"),
        (with_set(METAL, env={"A": {"secret": "no:x"}}), "labelSets[0].env.A", "no secret context 'no'"),
        # bare-metal
        (metal(host="tcp://x"), "host", "container scaler"),
        (metal(networkIsolation=True), "networkIsolation", "container scaler"),
        (metal(allowJobImage=False), "allowJobImage", "container scaler"),
        (metal(registryAuth=[]), "registryAuth", "container scaler"),
        (with_set(METAL, image="x"), "labelSets[0].image", "container scaler"),
        (with_set(METAL, pullPolicy="Never"), "labelSets[0].pullPolicy", "container scaler"),
        (with_set(METAL, containerSocket=True), "labelSets[0].containerSocket", "container scaler"),
        (with_set(METAL, capAdd=["X"]), "labelSets[0].capAdd", "container scaler"),
        (with_set(METAL, agent="inject"), "labelSets[0].agent", "container scaler"),
        (with_set(METAL, user="u", runAsRoot=True), "labelSets[0].user", "runAsRoot"),
        (with_set(METAL, command=[]), "labelSets[0].command", "empty"),
        (with_set(METAL, command=[""]), "labelSets[0].command", "empty"),
        (with_set(METAL, workingDirectory="srv"), "labelSets[0].workingDirectory", "absolute"),
        # container
        (docker(networkIsolation=True, host="tcp://build-7:2375"), "host", "networkIsolation: false"),
        (docker(networkIsolation=True, host="ssh://build-7"), "host", "networkIsolation: false"),
        (with_set(DOCKER, networkPolicy={"denyAll": True}), "labelSets[0].networkPolicy", "networkIsolation: false"),
        (with_set(METAL, networkPolicy={"denyAll": True}), "labelSets[0].networkPolicy", "container scaler"),
        (docker(enforceCgroups=True), "enforceCgroups", "bare-metal"),
        (with_set(DOCKER, user="u"), "labelSets[0].user", "bare-metal"),
        (with_set(DOCKER, runAsRoot=True), "labelSets[0].runAsRoot", "bare-metal"),
        (with_set(DOCKER, command=["x"]), "labelSets[0].command", "bare-metal"),
        (with_set(DOCKER, workingDirectory="/x"), "labelSets[0].workingDirectory", "bare-metal"),
        (docker(labelSets=[{"labels": ["linux"]}]), "labelSets[0].image", "is required"),
        (with_set(DOCKER, image="Nginx"), "labelSets[0].image", "lower case"),
        (with_set(DOCKER, image="u:hunter2@h/x"), "labelSets[0].image", "credentials"),
        (
            docker(allowJobImage=True, labelSets=[{"labels": ["x"], "containerSocket": True}]),
            "labelSets[0].containerSocket", "allowJobImage",
        ),
        (
            docker(registryAuth=[{"registry": "https://ghcr.io", "tokenSecret": "a:b"}]),
            "registryAuth[0].registry", "scheme",
        ),
        (
            docker(registryAuth=[{"registry": "ghcr.io", "tokenSecret": "no:b"}]),
            "registryAuth[0].tokenSecret", "no secret context 'no'",
        ),
    ],
)  # fmt: skip
def test_a_scaler_that_cannot_mean_what_it_says_is_refused_at_its_key(
    scaler: dict[str, Any], path: str, words: str
) -> None:
    findings = found(scaler)

    assert words in findings[f"scalers[0].{path}"]
    assert len(findings) == 1
    assert not any("hunter2" in message for message in findings.values())


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({"name": "a"}, {"name": "a", "labelSets": [{"labels": ["x"]}]}, "name of an earlier scaler"),
        ({"name": "a"}, {"name": "A", "labelSets": [{"labels": ["x"]}]}, "name of an earlier scaler"),
        ({"name": "a"}, {"name": "b"}, "labels: no job could tell"),
        ({"name": "a"}, {"name": "b", "labelSets": [{"labels": ["LINUX", "linux"]}]}, "no job could tell"),
        ({"name": "a", "mandatoryLabels": ["linux"]}, {"name": "b", "mandatoryLabels": ["Linux"]}, "no job could tell"),
        ({"name": "a", "labelSets": [{"labels": ["x"]}, {"labels": ["X"]}]}, {"name": "b"}, "no job could tell"),
    ],
)
def test_two_that_no_job_could_tell_apart_are_refused(one: dict[str, Any], other: dict[str, Any], words: str) -> None:
    findings = found(metal(**one), metal(**other))

    assert len(findings) == 1
    assert words.removeprefix("labels: ") in next(iter(findings.values()))


@pytest.mark.parametrize(
    "other",
    [
        {"labelSets": [{"labels": ["linux", "x"]}]},
        {"labelSets": [{"labels": ["linux"], "excludeLabels": ["kici:role:x"]}]},
        {"mandatoryLabels": ["linux"]},
        {"platform": "linux/arm64"},
        {"roles": ["deploy"]},
    ],
)
def test_two_that_differ_in_labels_gates_excludes_platform_or_roles_stand_side_by_side(other: dict[str, Any]) -> None:
    assert found(metal(name="a"), metal(name="b", **other)) == {}


SECRETS = {
    "contexts": {
        "reg": {"type": "file", "path": "/s", "registries": ["ghcr.io"], "names": ["token*"]},
        "ci": {"type": "env"},
    }
}


@pytest.mark.parametrize(
    ("registry_auth", "path", "words"),
    [
        ({"registry": "ghcr.io", "tokenSecret": "reg:token"}, None, ""),
        ({"registry": "GHCR.io", "usernameSecret": "reg:token-user", "tokenSecret": "reg:token"}, None, ""),
        ({"registry": "ghcr.io", "username": "u", "usernameSecret": "no:x", "tokenSecret": "reg:token"}, None, ""),
        ({"registry": "quay.io", "tokenSecret": "reg:token"}, "tokenSecret", "may not be sent to quay.io"),
        ({"registry": "ghcr.io", "tokenSecret": "reg:other"}, "tokenSecret", "does not serve"),
        ({"registry": "ghcr.io", "tokenSecret": "ci:token"}, "tokenSecret", "may not be sent to ghcr.io"),
        ({"registry": "ghcr.io", "usernameSecret": "no:x", "tokenSecret": "reg:token"}, "usernameSecret", "no secret"),
    ],
)
def test_a_scalers_own_references_are_checked_against_the_contexts(
    registry_auth: dict[str, str], path: str | None, words: str
) -> None:
    findings = found(docker(registryAuth=[registry_auth]), secrets=SECRETS)

    assert set(findings) == ({f"scalers[0].registryAuth[0].{path}"} if path else set())
    assert words in next(iter(findings.values()), "")


def test_a_label_sets_environment_may_not_hold_a_registrys_secret() -> None:
    findings = found(with_set(METAL, env={"A": {"secret": "reg:token"}, "B": {"secret": "ci:x"}}), secrets=SECRETS)

    assert set(findings) == {"scalers[0].labelSets[0].env.A"}


def test_two_credentials_for_one_registry_are_refused() -> None:
    both = [{"registry": name, "tokenSecret": "reg:token"} for name in ("ghcr.io", "GHCR.IO")]

    assert "only the first" in found(docker(registryAuth=both), secrets=SECRETS)["scalers[0].registryAuth[1].registry"]


@pytest.mark.parametrize(
    ("context", "path", "words"),
    [
        ({"type": "file", "path": "relative"}, ".path", "absolute"),
        ({"type": "file", "path": "~/secrets"}, ".path", "absolute"),
        ({"type": "env", "registries": ["ghcr.io", "https://quay.io"]}, ".registries[1]", "scheme"),
        ({"type": "env", "registries": ["ghcr.io/owner"]}, ".registries[0]", "path"),
        ({"type": "env", "env": False}, "", "serves nothing"),
    ],
)
def test_a_context_that_can_serve_nobody_is_refused(context: dict[str, Any], path: str, words: str) -> None:
    findings = found(METAL, secrets={"contexts": {"x": context}})

    assert words in findings[f"secrets.contexts.x{path}"]
