"""PgBouncer in transaction mode in front of a test's server: what a store that keeps session state breaks on."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hatchway.dev.ports import free_port
from hatchway.dev.postgres import server_user
from tests.support.postgres_fixtures import PostgresServer, private_directory

START_S = 60.0
SERVER_CONNECTIONS = 6
"""Fewer than the clients have, so that each statement of a session may meet another connection of the server."""


@contextmanager
def running_pooler(server_dsn: str, directory: Path) -> Iterator[int]:
    """The port of a PgBouncer that leads to every database of that server. Strict: no startup option is ignored."""
    server, user, port = conninfo_to_dict(server_dsn), server_user(), free_port()
    ini = directory / "pgbouncer.ini"
    log = directory / "pgbouncer.log"
    ini.touch(mode=0o600)
    ini.write_text(
        f"""
[databases]
* = host={server["host"]} port={server["port"]} user={server["user"]} password={server["password"]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {SERVER_CONNECTIONS}
max_client_conn = 500
logfile = {log}
"""
    )
    if user is not None:
        for path in (directory, ini):
            os.chown(path, user.uid, user.gid)
    process = subprocess.Popen(
        ["pgbouncer", "--quiet", str(ini)],
        stdin=subprocess.DEVNULL,
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
    )
    try:
        end = time.monotonic() + START_S
        while not _listens(port):
            said = log.read_text() if log.exists() else ""
            assert process.poll() is None, f"pgbouncer ended with {process.returncode}: {said}"
            assert time.monotonic() < end, f"pgbouncer does not listen: {said}"
            time.sleep(0.02)
        yield port
    finally:
        process.kill()  # in transaction mode it would wait for clients otherwise
        process.wait()


def _listens(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def through(port: int, dsn: str) -> str:
    """The same database by way of the pooler."""
    return make_conninfo(dsn, host="127.0.0.1", port=port)


@pytest.fixture(scope="session")
def pooler(postgres: PostgresServer) -> Iterator[int]:
    """The port of a PgBouncer in front of the run's server."""
    with private_directory("hatchway-pooler-") as directory, running_pooler(postgres.dsn, directory) as port:
        yield port
