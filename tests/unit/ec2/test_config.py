"""What a scaler of instances says about itself that could only go wrong later."""

from __future__ import annotations

from typing import Any

import boto3
import pytest

from hatchway.config.checks import check_config
from hatchway.config.document import spell
from hatchway.config.schema import Config
from tests.support.fake_ec2.specs import REGION, ec2_scaler

ENDPOINT = "http://127.0.0.1:1"
LIMITED = "labelSets[0].ec2.maxInstanceSeconds"
AMOUNTS = {"resources": {"cpus": 1, "memory": "1Gi"}}


def found(scaler: dict[str, Any]) -> dict[str, str]:
    """Path to sentence, below the one scaler."""
    config = Config.model_validate({"version": 1, "scalers": [scaler]})
    return {spell(path).removeprefix("scalers[0]."): message for path, message in check_config(config)}


@pytest.mark.parametrize("pool", [{"size": 1}, {"size": 0}, {"size": 1, "labels": ["linux"]}])
def test_a_time_limit_from_the_boot_is_refused_where_agents_wait_for_their_jobs(pool: dict[str, Any]) -> None:
    """How long a warm agent idles has no bound: whatever the limit, it could end one at work."""
    scaler = ec2_scaler(ENDPOINT, warmPool=pool, labelSet=AMOUNTS, ec2={"maxInstanceSeconds": 86_400})

    assert "warm" in found(scaler)[LIMITED]


def test_a_time_limit_is_let_through_where_agents_begin_with_their_jobs() -> None:
    other = ec2_scaler(ENDPOINT)["labelSets"][0] | {"labels": ["linux", "warm"]}
    scaler = ec2_scaler(ENDPOINT, warmPool={"size": 1, "labels": ["linux", "warm"]}, ec2={"maxInstanceSeconds": 86_400})
    scaler["labelSets"].append(other | AMOUNTS)

    assert found(scaler) == {}


@pytest.mark.parametrize(
    "url",
    [
        "https://[::1", "https://ec2.example:99999", "https://ec2.example:0", "https://ec2 .example", "https://",
        "https://ec2_here.example", "https://\u00e4ws.example", "https://a..example", "ftp://ec2.example",
        "https://user@ec2.example", "https://ec2.example?x=1", "https://ec2.example#x", "http://ec2.example",
    ],
)  # fmt: skip
def test_an_endpoint_that_no_call_can_be_sent_to_is_found_at_load(url: str) -> None:
    assert found(ec2_scaler(url))["ec2.endpointUrl"]


@pytest.mark.parametrize(
    "url", ["https://vpce-0a.ec2.eu-central-1.vpce.amazonaws.com", "https://10.0.0.7:8443", "http://[::1]:9", ENDPOINT]
)
def test_an_endpoint_that_the_sdk_takes_is_let_through(url: str) -> None:
    boto3.session.Session().client("ec2", region_name=REGION, endpoint_url=url)

    assert found(ec2_scaler(url)) == {}
