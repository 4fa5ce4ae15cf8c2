"""Hatchway on one side, a customer on the other: a namespace of theirs, their worker, their machines."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.customer import Customer, a_customer
from tests.support.namespaces import Namespaces


@pytest.fixture(scope="module")
async def served(namespaces: Namespaces) -> AsyncIterator[Customer]:
    """The example's worker, whose agents serve until they are drained."""
    async with a_customer(namespaces) as one:
        yield one
