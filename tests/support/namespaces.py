"""Namespaces of the run's Temporal server, and how a test waits for what must become true."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

import worker
from hatchway import search_attributes
from hatchway.client import plugin
from hatchway.reach import WorkerRefused

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds that a test waits for a condition before it says that it never came true."""


async def new_namespace(address: str, name: str | None = None) -> Client:
    """A fresh namespace of the dev server with Hatchway's search attributes, and a client of it."""
    name = name or f"t-{uuid.uuid4().hex[:12]}"
    admin = await Client.connect(address)
    request = RegisterNamespaceRequest(namespace=name)
    request.workflow_execution_retention_period.FromTimedelta(timedelta(days=1))
    await admin.workflow_service.register_namespace(request)
    attributes = {key.name: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD for key in search_attributes.ALL}

    async def registered() -> bool:
        try:
            await admin.operator_service.add_search_attributes(
                AddSearchAttributesRequest(namespace=name, search_attributes=attributes)
            )
        except RPCError as e:
            return e.status is RPCStatusCode.ALREADY_EXISTS
        return True

    await until(registered)
    client = await Client.connect(address, namespace=name, plugins=[plugin()])

    async def visible() -> bool:
        try:
            await worker.probe_search_attributes(client)
        except (RPCError, WorkerRefused):
            return False
        return True

    await until(visible)
    return client


class Namespaces:
    """Fresh namespaces, made ahead: the server takes two seconds until it lets a new one be used."""

    AHEAD = 3

    def __init__(self, address: str) -> None:
        self._address = address
        self._ready: asyncio.Queue[Client] = asyncio.Queue(self.AHEAD)
        self._making = [asyncio.create_task(self._make()) for _ in range(self.AHEAD)]

    async def _make(self) -> None:
        while True:
            await self._ready.put(await new_namespace(self._address))

    async def take(self) -> Client:
        """One that nobody else has."""
        ready = asyncio.create_task(self._ready.get())
        done, _ = await asyncio.wait([ready, *self._making], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {ready}:
            task.result()  # a server that makes no namespaces fails the test that needs one
        return await ready

    def stop(self) -> None:
        for making in self._making:
            making.cancel()


async def unless_slow(asking: Awaitable[T]) -> T | None:
    """What a query answers; None where that does not come in time, which an asker may try again: it changes nothing.

    It waits for the workflow task under way. One that a killed worker had is given up after 10 s, and the next one is
    waited for as well: a query outlives no two kills, and no slow start of a worker.
    """
    try:
        return await asking
    except RPCError as e:
        if e.status not in (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED):
            raise
        return None


async def until(condition: Callable[[], Any], patience: float = PATIENCE, what: str = "") -> Any:
    """Await a condition, which may be a coroutine function; its value. Fails the test when it never comes true."""
    limit = asyncio.timeout(patience)
    try:
        async with limit:
            while True:
                value = condition()
                if asyncio.iscoroutine(value):
                    value = await value
                if value:
                    return value
                await asyncio.sleep(0.02)
    except TimeoutError as e:
        if not limit.expired():
            raise
        raise TimeoutError(f"waited {patience:g} s for {what or condition}, which never came true") from e
