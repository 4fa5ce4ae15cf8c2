"""Customers' workflows that do not do as they should, or not at once. A test opens their gates by a signal."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError


class _Gated:
    def __init__(self) -> None:
        self._open = False

    @workflow.signal
    def go(self) -> None:
        self._open = True

    async def _until_open(self) -> None:
        await workflow.wait_condition(lambda: self._open)


@workflow.defn(name="ScaleUp")
class SlowScaleUp(_Gated):
    @workflow.run
    async def run(self, event: dict[str, Any]) -> None:
        await self._until_open()


@workflow.defn(name="ScaleUp")
class DeafScaleUp(_Gated):
    """Does not heed its cancellation."""

    @workflow.run
    async def run(self, event: dict[str, Any]) -> None:
        while not self._open:
            try:
                await self._until_open()
            except asyncio.CancelledError:
                continue


@workflow.defn(name="ScaleUp")
class FailingScaleUp:
    @workflow.run
    async def run(self, event: dict[str, Any]) -> None:
        raise ApplicationError("no machine in zone b", type="NoMachine", non_retryable=True)


@workflow.defn(name="ScaleUp")
class FullScaleUp:
    """Says by its type that the next attempt may do better."""

    @workflow.run
    async def run(self, event: dict[str, Any]) -> None:
        raise ApplicationError("all 20 machines are in use", type="capacity")


@workflow.defn(name="ScaleUp")
class QuickScaleUp:
    @workflow.run
    async def run(self, event: dict[str, Any]) -> None:
        return


@workflow.defn(name="ScaleDown")
class QuickScaleDown:
    @workflow.run
    async def run(self, event: dict[str, Any]) -> None:
        return


@workflow.defn(name="ScaleDown")
class SlowScaleDown(_Gated):
    @workflow.run
    async def run(self, event: dict[str, Any]) -> None:
        await self._until_open()


@workflow.defn(name="ScaleDown")
class FailingScaleDown:
    @workflow.run
    async def run(self, event: dict[str, Any]) -> None:
        raise ApplicationError("the cloud answered 500", non_retryable=True)
