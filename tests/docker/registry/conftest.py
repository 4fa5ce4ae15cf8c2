"""A container backend for every test, and AWS on loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docker.backends.conftest import (
    _nothing_left,
    backend,
    clean_images,
    installation,
    make_backend,
    spec,
)
from tests.support.aws import IDENTITY, aws_stand_in

__all__ = ["_nothing_left", "backend", "clean_images", "installation", "make_backend", "spec"]


@pytest.fixture(scope="module")
def aws_endpoint() -> Iterator[str]:
    with aws_stand_in() as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch, aws_endpoint: str) -> None:
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_ECR", aws_endpoint)
