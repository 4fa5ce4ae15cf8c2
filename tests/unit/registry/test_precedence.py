"""Who serves a pull: the job > registryAuth > the host's docker config > ECR > nobody, and what each says of it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from hatchway.config.schema import Scaler, SecretsConfig
from hatchway.errors import AuthError, AuthUnavailable, HatchwayError, SecretError, SecretNotAllowed
from hatchway.model import ContainerSpec
from hatchway.registry.ecr import EcrLogins
from hatchway.registry.pull import Logins, Source, Standing
from hatchway.secrets.resolver import SecretResolver
from tests.unit.registry.rig import MakeHelper
from tests.unit.registry.test_docker_config import ASKED, BROKEN, IN_THE_FILE
from tests.unit.registry.test_ecr import HOSTS, Ecr, refusal
from tests.unit.registry.test_reference import ACCEPTED, REFUSED

MATERIAL = {name: f"material-of-the-{name}" for name in ("job", "scaler", "config")}
ECR = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/team/app:1"
OURS = "ghcr.io/ops/agent:1"
OTHER = "ghcr.io/team/app:1"
JOB, SCALER, CONFIG, ECR_SERVES, NOBODY = Source.JOB, Source.SCALER, Source.DOCKER_CONFIG, Source.ECR, Source.NONE

OF_JOB = {"tokenSecret": "ci:job"}
ROWS: list[tuple[str, dict[str, Any] | None, set[str], dict[str, Any], Source]] = [
    # image, the job's auth, what there is (registryAuth, docker config), further keys of the scaler, who serves
    (OTHER, OF_JOB, {"scaler", "config"}, {}, JOB),
    (OTHER, OF_JOB, {"scaler"}, {}, JOB),
    (OTHER, OF_JOB, {"config"}, {}, JOB),
    (OTHER, OF_JOB, set(), {}, JOB),
    (OTHER, None, {"scaler", "config"}, {}, SCALER),
    (OTHER, None, {"scaler"}, {}, SCALER),
    (OTHER, None, {"config"}, {}, CONFIG),
    (OTHER, None, {"config"}, {"useHostDockerConfig": False}, NOBODY),
    (OTHER, None, {"scaler", "config"}, {"useHostDockerConfig": False}, SCALER),
    (OTHER, None, set(), {}, NOBODY),
    (OTHER, None, set(), {"ecrFor": "all-images"}, NOBODY),
    # without allowJobImage the job's image is not pulled, and its credentials serve nobody else's
    (OURS, OF_JOB, {"scaler", "config"}, {"allowJobImage": False}, SCALER),
    (OURS, OF_JOB, {"config"}, {"allowJobImage": False}, CONFIG),
    (OURS, OF_JOB, set(), {"allowJobImage": False}, NOBODY),
    (OURS, OF_JOB, set(), {}, JOB),
    # ECR, for the images of label sets unless the operator says more or less
    (ECR, OF_JOB, {"scaler", "config"}, {}, JOB),
    (ECR, None, {"scaler", "config"}, {}, SCALER),
    (ECR, None, {"config"}, {}, CONFIG),
    (ECR, None, set(), {}, NOBODY),
    (ECR, None, set(), {"ecrFor": "all-images"}, ECR_SERVES),
    (ECR, None, set(), {"ecrFor": "label-sets"}, NOBODY),
    (ECR, None, set(), {"ecrFor": "none"}, NOBODY),
    (ECR, None, set(), {"labelSets": [{"labels": ["x"], "image": ECR}]}, ECR_SERVES),
    (ECR, None, set(), {"labelSets": [{"labels": ["x"], "image": ECR}], "ecrFor": "none"}, NOBODY),
    (ECR, None, set(), {"labelSets": [{"labels": ["x"], "image": ECR}], "allowJobImage": False}, ECR_SERVES),
    (ECR, None, {"config"}, {"labelSets": [{"labels": ["x"], "image": ECR}]}, CONFIG),
    (ECR, None, {"scaler"}, {"labelSets": [{"labels": ["x"], "image": ECR}]}, SCALER),
]


def scaler(image: str, there: set[str], **fields: Any) -> Scaler:
    registry = image.partition("/")[0]
    own = [{"registry": registry, "username": "operator", "tokenSecret": "ci:scaler"}] if "scaler" in there else []
    return Scaler.model_validate(
        {
            "name": "docker", "type": "container", "maxAgents": 1, "networkIsolation": False, "allowJobImage": True,
            "useHostDockerConfig": True, "registryAuth": own, "labelSets": [{"labels": ["x"], "image": OURS}], **fields,
        }
    )  # fmt: skip


def job(image: str, auth: dict[str, Any] | None) -> ContainerSpec:
    return ContainerSpec.model_validate({"image": image, "auth": auth})


@pytest.fixture
def resolver(tmp_path: Path) -> SecretResolver:
    for name in ("job", "scaler"):
        (tmp_path / name).write_text(MATERIAL[name])
    registries = ["ghcr.io", ECR.partition("/")[0]]
    context = {"type": "file", "path": str(tmp_path), "registries": registries, "names": ["job", "scaler", "absent"]}
    return SecretResolver(SecretsConfig.model_validate({"contexts": {"ci": context}}), {})


@pytest.fixture
def ecr() -> Ecr:
    return Ecr()


def logins(tmp_path: Path, ecr: Ecr, there: set[str], image: str, config: Any = None) -> Logins:
    registry = image.partition("/")[0]
    entry = {"auth": base64.b64encode(f"host:{MATERIAL['config']}".encode()).decode()}
    if config is None and "config" in there:
        config = {"auths": {registry: entry}}
    if config is not None:
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    environ = {"DOCKER_CONFIG": str(tmp_path), "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    return Logins(environ, EcrLogins(ecr, now=lambda: ecr.now))


@pytest.mark.scenario("S31")
@pytest.mark.parametrize(("image", "auth", "there", "keys", "serves"), ROWS)
async def test_the_first_source_that_has_something_serves_and_explain_says_the_same(
    *,
    tmp_path: Path,
    resolver: SecretResolver,
    ecr: Ecr,
    image: str,
    auth: dict[str, Any] | None,
    there: set[str],
    keys: dict[str, Any],
    serves: Source,
) -> None:
    asked = logins(tmp_path, ecr, there, image), job(image, auth), scaler(image, there, **keys)

    found = await asked[0].credentials(image, *asked[1:], resolver)
    verdicts = await asked[0].explain(image, *asked[1:], resolver)

    tokens = {JOB: MATERIAL["job"], SCALER: MATERIAL["scaler"], CONFIG: MATERIAL["config"], ECR_SERVES: "password-1"}
    assert (found.token if found else None) == tokens.get(serves)
    assert [verdict.source for verdict in verdicts] == list(Source)
    assert [verdict.source for verdict in verdicts if verdict.standing is Standing.SERVES] == [serves]
    said = " ".join(verdict.why for verdict in verdicts)
    assert not any(material in said for material in (*MATERIAL.values(), "password-1"))


@pytest.mark.parametrize(
    ("image", "auth", "keys", "config", "error", "words"),
    [
        (OTHER, {"tokenSecret": "ci:absent"}, {}, None, SecretError, "ci:absent"),
        (OTHER, {"tokenSecret": "ci:other"}, {}, None, SecretNotAllowed, "ci:other"),
        (
            OTHER, None, {"registryAuth": [{"registry": "ghcr.io", "tokenSecret": "ci:absent"}]}, None, SecretError,
            r"registryAuth\[0\].*ci:absent",
        ),
        (OTHER, None, {}, "{", AuthError, "not JSON"),
        (OTHER, None, {}, {"credsStore": "../x"}, AuthError, "credsStore"),
        (OTHER, None, {}, {"credsStore": "failing"}, AuthError, "credsStore"),
        (OTHER, None, {}, {"credHelpers": {"ghcr.io": "failing"}}, AuthError, "credHelpers"),
        (ECR, None, {"ecrFor": "all-images"}, None, AuthUnavailable, "limits"),
    ],
)  # fmt: skip
async def test_a_source_that_has_something_and_cannot_give_it_never_becomes_another_ones_pull(
    *,
    tmp_path: Path,
    resolver: SecretResolver,
    ecr: Ecr,
    make_helper: MakeHelper,
    image: str,
    auth: dict[str, Any] | None,
    keys: dict[str, Any],
    config: Any,
    error: type[HatchwayError],
    words: str,
) -> None:
    make_helper("failing", "exit 1")
    ecr.error = refusal("ThrottlingException")
    asked = logins(tmp_path, ecr, set(), image, config), job(image, auth), scaler(image, set(), **keys)

    with pytest.raises(error, match=words):
        await asked[0].credentials(image, *asked[1:], resolver)
    verdicts = await asked[0].explain(image, *asked[1:], resolver)

    assert Standing.FAILS in {verdict.standing for verdict in verdicts}
    assert Standing.SERVES not in {verdict.standing for verdict in verdicts}


async def test_a_job_s_other_image_does_not_lend_its_credentials(
    tmp_path: Path, resolver: SecretResolver, ecr: Ecr
) -> None:
    asked = logins(tmp_path, ecr, set(), OTHER)

    found = await asked.credentials(OURS, job(OTHER, OF_JOB), scaler(OURS, set()), resolver)

    assert found is None


async def test_a_worker_without_an_aws_identity_asks_ecr_without_credentials_and_says_so(
    tmp_path: Path, resolver: SecretResolver
) -> None:
    from botocore.exceptions import NoCredentialsError

    ecr = Ecr(error=NoCredentialsError())
    asked = logins(tmp_path, ecr, set(), ECR), None, scaler(ECR, set(), ecrFor="all-images")

    assert await asked[0].credentials(ECR, *asked[1:], resolver) is None
    verdicts = await asked[0].explain(ECR, *asked[1:], resolver)
    assert "no AWS credentials" in next(verdict.why for verdict in verdicts if verdict.source is Source.ECR)


def test_the_tables_of_references_and_precedence_hold_more_than_two_hundred_rows() -> None:
    tables = (ACCEPTED, REFUSED, IN_THE_FILE, BROKEN, ASKED, HOSTS, ROWS)

    assert sum(len({repr(row) for row in table}) for table in tables) >= 200
