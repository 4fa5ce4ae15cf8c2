"""The servers that a connection string names."""

from __future__ import annotations

import pytest

from hatchway.store.endpoints import database_endpoints


@pytest.mark.parametrize(
    ("conninfo", "endpoints"),
    [
        ("postgresql://u:p@db.example/x", ["db.example:5432"]),
        ("postgresql://u:p@db.example:6432/x", ["db.example:6432"]),
        ("postgresql://u:p@a,b:5433/x", ["a:5432", "b:5433"]),
        ("host=a,b port=6432", ["a:6432", "b:6432"]),
        ("host=db.example hostaddr=203.0.113.5", ["203.0.113.5:5432"]),
        ("postgresql:///x?host=/run/postgresql", []),
        ("postgresql://u@[2001:db8::1]/x", []),
        ("dbname=x", []),
    ],
)
def test_each_server_is_named_with_its_port(conninfo: str, endpoints: list[str]) -> None:
    assert database_endpoints(conninfo) == endpoints
