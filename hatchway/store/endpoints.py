"""Where the database and Temporal are on the network: closed to isolated agents also where a policy opens much."""

from __future__ import annotations

from itertools import zip_longest

from psycopg.conninfo import conninfo_to_dict
from temporalio.client import Client

POSTGRES_PORT = "5432"


def server_endpoints(conninfo: str, temporal: Client) -> list[str]:
    """`host:port` of each server that this worker holds connections to."""
    target = temporal.service_client.config.target_host.rpartition("//")[2]
    return database_endpoints(conninfo) + [target] * (not target.startswith("["))


def database_endpoints(conninfo: str) -> list[str]:
    """`host:port` of each server that a connection string names; none for Unix sockets and IPv6 addresses.

    A `hostaddr` stands for its host. Agents' networks carry no IPv6, so there is nothing to close.
    """
    parts = conninfo_to_dict(conninfo)
    hosts = str(parts.get("hostaddr") or parts.get("host") or "").split(",")
    ports = str(parts.get("port") or "").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    return [
        f"{host}:{port or POSTGRES_PORT}"
        for host, port in zip_longest(hosts, ports[: len(hosts)], fillvalue="")
        if host and not host.startswith(("/", "@")) and ":" not in host
    ]
