"""What a Temporal namespace needs before provisions run in it, and who it is."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from hatchway import search_attributes
from hatchway.errors import HatchwayError

CLOUD_HOSTS = (".tmprl.cloud", ".api.temporal.io")
"""Temporal Cloud's namespace and regional endpoints."""
NOT_ALLOWED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)
RPC_LIMIT = timedelta(seconds=10)

USABLE_S = 60.0
"""The server's cache of search attributes is refreshed once a minute at the latest."""


class NamespaceRefused(HatchwayError):
    """The namespace cannot be used, or not yet. Says what an operator has to do, with the command."""


async def namespace_uuid(temporal: Client) -> str:
    """The server's own id of the namespace: a restored copy of it has the same name and another id."""
    answer = await temporal.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace=temporal.namespace), timeout=RPC_LIMIT
    )
    return str(answer.namespace_info.id)


async def register_search_attributes(temporal: Client) -> list[str]:
    """Add the search attributes that are missing, and answer their names. Safe to repeat. Raises NamespaceRefused."""
    known = await _known(temporal)
    for key in search_attributes.ALL:
        if known.get(key.name, key.indexed_value_type) != key.indexed_value_type:
            raise NamespaceRefused(
                f"namespace {temporal.namespace} has a search attribute {key.name} of another type: remove it first "
                f"(temporal operator search-attribute remove --name {key.name})"
            )
    missing = [key for key in search_attributes.ALL if key.name not in known]
    if not missing:
        return []
    if is_cloud(temporal.service_client.config.target_host):
        raise _by_hand(temporal, missing, cloud=True)
    adding = AddSearchAttributesRequest(namespace=temporal.namespace)
    for key in missing:
        adding.search_attributes[key.name] = int(key.indexed_value_type)  # type: ignore[assignment]
    try:
        await temporal.operator_service.add_search_attributes(adding)
    except RPCError as e:
        if e.status in NOT_ALLOWED:
            raise _by_hand(temporal, missing, cloud=False) from e
        raise
    await _until_usable(temporal, missing)
    return [key.name for key in missing]


def is_cloud(address: str) -> bool:
    """Whether host:port is Temporal Cloud, where search attributes belong to the control plane."""
    return address.rpartition(":")[0].endswith(CLOUD_HOSTS)


async def _known(temporal: Client) -> dict[str, int]:
    """Our attributes that the namespace has, with their types."""
    try:
        answer = await temporal.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=temporal.namespace)
        )
    except RPCError as e:
        if e.status not in NOT_ALLOWED:
            raise
        # Where the operator's calls are kept from us a query still tells whether a name means anything.
        return {key.name: key.indexed_value_type for key in search_attributes.ALL if await _usable(temporal, key)}
    return {name: int(kind) for name, kind in answer.custom_attributes.items()}


async def _usable(temporal: Client, key: SearchAttributeKey[Any]) -> bool:
    try:
        await temporal.count_workflows(f'{key.name} = "probe"')
    except RPCError as e:
        if e.status is not RPCStatusCode.INVALID_ARGUMENT:
            raise
        return False
    return True


async def _until_usable(temporal: Client, keys: list[SearchAttributeKey[Any]]) -> None:
    """A server's frontends learn of a new attribute some seconds later; a worker that starts before refuses to."""
    deadline = time.monotonic() + USABLE_S
    for key in keys:
        while not await _usable(temporal, key):
            if time.monotonic() > deadline:
                raise NamespaceRefused(
                    f"the search attribute {key.name} was added, and namespace {temporal.namespace} does not know it "
                    f"{USABLE_S:g} s later: run `hatchway setup` again in a minute"
                )
            await asyncio.sleep(0.2)


def _by_hand(temporal: Client, missing: list[SearchAttributeKey[Any]], *, cloud: bool) -> NamespaceRefused:
    """The commands that an operator with the right to do so runs."""
    kinds = {key.name: key.indexed_value_type.name.capitalize() for key in missing}
    if cloud:
        flags = " ".join(f"--search-attribute {name}={kind}" for name, kind in kinds.items())
        command = f"tcld namespace search-attributes add --namespace {temporal.namespace} {flags}"
    else:
        flags = " ".join(f"--name {name} --type {kind}" for name, kind in kinds.items())
        command = f"temporal operator search-attribute create --namespace {temporal.namespace} {flags}"
    return NamespaceRefused(
        f"namespace {temporal.namespace} lacks search attributes that these credentials may not add; have this run, "
        f"then `hatchway setup` again:\n  {command}"
    )
