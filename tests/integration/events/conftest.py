"""Hatchway on one side, a customer on the other: a namespace of theirs, their worker, their machines."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.customer import Customer, a_customer, event_scaler
from tests.support.namespaces import Namespaces
from tests.support.stack import Stack, running_stack


@pytest.fixture
async def customer(namespaces: Namespaces) -> AsyncIterator[Customer]:
    """The example's worker, whose agents serve until they are drained."""
    async with a_customer(namespaces) as one:
        yield one


@pytest.fixture
async def stack(namespaces: Namespaces, database_url: str, customer: Customer) -> AsyncIterator[Stack]:
    """Worker and gateway with one event scaler, whose events go to the customer's workflows."""
    async with running_stack(namespaces, database_url, event_scaler(customer.target())) as running:
        yield running
