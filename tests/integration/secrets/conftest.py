"""AWS on loopback, and an identity that it takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.aws import IDENTITY, aws_stand_in


@pytest.fixture(scope="module")
def aws_endpoint() -> Iterator[str]:
    with aws_stand_in() as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
