"""`hatchway setup`: search attributes, and the namespace that a database belongs to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from hatchway import search_attributes
from hatchway.dev.temporal import temporal_binary
from hatchway.namespace import NamespaceRefused, is_cloud, register_search_attributes
from tests.integration.cli.conftest import Hatchway
from tests.support.temporal_fixtures import TemporalServer

NAMES = [key.name for key in search_attributes.ALL]


@pytest.fixture
async def bare_temporal() -> AsyncIterator[Client]:
    """A server that knows none of our search attributes."""
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(temporal_binary()), dev_server_log_level="error"
    ) as environment:
        yield environment.client


async def test_setup_adds_what_is_missing_and_the_next_one_nothing(
    elsewhere: Hatchway, bare_temporal: Client, database_url: str
) -> None:
    servers = {"TEMPORAL_ADDRESS": bare_temporal.service_client.config.target_host, "DATABASE_URL": database_url}

    refused = elsewhere("worker", **servers)
    first = elsewhere("setup", "--json", **servers)
    second = elsewhere("setup", "--json", **servers)

    assert refused.returncode == 1
    assert "`hatchway setup`" in refused.stderr
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert json.loads(first.stdout)["added"] == NAMES
    assert json.loads(second.stdout)["added"] == []
    assert json.loads(first.stdout)["schedules"] == {"hatchway/sweep": "created", "hatchway/purge": "created"}
    assert json.loads(second.stdout)["schedules"] == {"hatchway/sweep": "unchanged", "hatchway/purge": "unchanged"}
    assert json.loads(first.stdout)["namespace_uuid"] == json.loads(second.stdout)["namespace_uuid"]


async def test_setup_leaves_usable_attributes_behind(bare_temporal: Client) -> None:
    await register_search_attributes(bare_temporal)

    for name in NAMES:
        assert (await bare_temporal.count_workflows(f'{name} = "x"')).count == 0


async def test_an_attribute_of_another_type_is_refused_with_the_command_that_removes_it(bare_temporal: Client) -> None:
    adding = AddSearchAttributesRequest(namespace=bare_temporal.namespace)
    adding.search_attributes["HatchwayState"] = 3  # type: ignore[assignment] # INDEXED_VALUE_TYPE_INT
    await bare_temporal.operator_service.add_search_attributes(adding)

    with pytest.raises(NamespaceRefused, match="search-attribute remove --name HatchwayState"):
        await register_search_attributes(bare_temporal)


@pytest.mark.parametrize("command", ["setup", "doctor"])
def test_a_namespace_that_is_not_there_is_told_with_what_makes_it(
    elsewhere: Hatchway, temporal: TemporalServer, database_url: str, command: str
) -> None:
    own = {"TEMPORAL_ADDRESS": temporal.address, "TEMPORAL_NAMESPACE": "absent", "DATABASE_URL": database_url}

    done = elsewhere(command, "--json", **own)

    assert done.returncode == 1
    error = json.loads(done.stderr)
    assert error["error"] == "no_namespace"
    assert "absent" in error["message"]
    assert "operator namespace create" in error["message"]


async def test_a_database_stays_with_its_namespace(
    elsewhere: Hatchway, bare_temporal: Client, temporal: TemporalServer, database_url: str
) -> None:
    own = {"TEMPORAL_ADDRESS": temporal.address, "DATABASE_URL": database_url}
    other = own | {"TEMPORAL_ADDRESS": bare_temporal.service_client.config.target_host}

    first, moved, again = elsewhere("setup", **own), elsewhere("setup", "--json", **other), elsewhere("setup", **own)

    assert (first.returncode, moved.returncode, again.returncode) == (0, 1, 0)
    assert json.loads(moved.stderr)["error"] == "other_namespace"


@pytest.mark.parametrize(
    ("address", "cloud"),
    [
        ("acme.a1b2c.tmprl.cloud:7233", True),
        ("us-east-1.aws.api.temporal.io:7233", True),
        ("127.0.0.1:7233", False),
        ("tmprl.cloud.example.com:7233", False),
    ],
)
def test_temporal_cloud_is_known_by_its_address(address: str, cloud: bool) -> None:
    assert is_cloud(address) is cloud
