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
from hatchway.store.pool import Database
from hatchway.tie import NamespaceTie, Tie
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


@pytest.mark.parametrize(("option", "keeps_its_id"), [("--retie", True), ("--as-copy", False)])
async def test_a_database_goes_to_another_namespace_when_it_is_told_to_and_no_worker_uses_it(
    elsewhere: Hatchway,
    bare_temporal: Client,
    temporal: TemporalServer,
    database_url: str,
    option: str,
    keeps_its_id: bool,
) -> None:
    own = {"TEMPORAL_ADDRESS": temporal.address, "DATABASE_URL": database_url}
    other = own | {"TEMPORAL_ADDRESS": bare_temporal.service_client.config.target_host}
    first = elsewhere("setup", "--json", **own)

    refused = elsewhere("setup", "--json", **other)
    async with Database.open(database_url) as db:
        await db.fetch_all("insert into scaler_instances (instance_id, kind) values ('worker-1', 'worker')")
        in_use = elsewhere("setup", option, "--json", **other)
        found = await NamespaceTie(db, bare_temporal).look()
        await db.fetch_all("update scaler_instances set last_seen_at = now() - interval '1 min'")
    moved, again = elsewhere("setup", option, "--json", **other), elsewhere("setup", option, "--json", **other)

    assert json.loads(refused.stderr)["error"] == "other_namespace"
    assert option in json.loads(refused.stderr)["message"]
    assert json.loads(in_use.stderr)["error"] == "in_use"
    assert "worker-1" in json.loads(in_use.stderr)["message"]
    assert found is Tie.ELSEWHERE
    assert moved.returncode == again.returncode == 0, moved.stderr + again.stderr
    ids = [json.loads(done.stdout)["installation_id"] for done in (first, moved, again)]
    assert (ids[0] == ids[1]) is keeps_its_id
    assert ids[1] == ids[2]


def test_a_move_and_a_copy_exclude_each_other(elsewhere: Hatchway) -> None:
    done = elsewhere("setup", "--retie", "--as-copy", "--json")

    assert done.returncode == 2
    assert json.loads(done.stderr)["error"] == "usage"


async def test_a_doctor_says_that_a_database_is_not_this_namespaces(
    elsewhere: Hatchway, bare_temporal: Client, temporal: TemporalServer, database_url: str
) -> None:
    own = {"TEMPORAL_ADDRESS": temporal.address, "DATABASE_URL": database_url}
    other = own | {"TEMPORAL_ADDRESS": bare_temporal.service_client.config.target_host}

    untied = elsewhere("doctor", "--json", **own)
    elsewhere("setup", **own)
    tied, foreign = elsewhere("doctor", "--json", **own), elsewhere("doctor", "--json", **other)

    (before,), after, (wrong,) = (
        [f for f in json.loads(done.stdout)["findings"] if f["check"] == "namespace"]
        for done in (untied, tied, foreign)
    )
    assert "`hatchway setup`" in before["todo"]
    assert after == []
    assert "nothing is reaped" in wrong["what"]
    assert "--as-copy" in wrong["todo"]


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
