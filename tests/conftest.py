"""Fixtures that every kind of test may use: the real servers, started when the first test asks for one."""

from __future__ import annotations

pytest_plugins = [
    "pytester",
    "tests.support.limits",
    "tests.support.streams",
    "tests.support.services",
    "tests.support.scenarios",
    "tests.support.postgres_fixtures",
    "tests.support.pooler",
    "tests.support.temporal_fixtures",
    "tests.support.docker_fixtures",
    "tests.support.compose_fixtures",
]
