"""The embedded server: closed to others, the same again after a stop or a kill, plain about what it cannot do."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from hatchway.dev.postgres import EmbeddedPostgres, EmbeddedPostgresError, server_user
from tests.integration.store.conftest import DURABILITY_OFF
from tests.support.postgres_fixtures import private_directory
from tests.support.services import POSTGRES15_BIN


@pytest.fixture
def directory() -> Iterator[Path]:
    with private_directory("hatchway-embedded-") as directory:
        yield directory


@pytest.fixture(
    params=[
        pytest.param(None, id="pg18"),
        pytest.param(POSTGRES15_BIN, id="pg15", marks=pytest.mark.needs("postgres15")),
    ]
)
def server(request: pytest.FixtureRequest, directory: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(directory, bin_dir=request.param, settings={"fsync": "off"}) as server:
        yield server


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def remember(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.createdb("kept")) as connection:
        connection.execute("create table t as select 7 as n")


def remembered(server: EmbeddedPostgres) -> object:
    with psycopg.connect(server.dsn("kept")) as connection:
        return connection.execute("select n from t").fetchone()


def test_it_is_closed_to_other_users_and_other_machines(server: EmbeddedPostgres, directory: Path) -> None:
    with psycopg.connect(server.dsn()) as connection:
        shown = {
            name: connection.execute(f"show {name}").fetchone()
            for name in ("listen_addresses", "unix_socket_directories", "data_checksums", "password_encryption")
        }
    assert shown == {
        "listen_addresses": ("127.0.0.1",),
        "unix_socket_directories": ("",),
        "data_checksums": ("on",),
        "password_encryption": ("scram-sha-256",),
    }
    assert (mode(directory), mode(directory / "data"), mode(directory / "password")) == (0o700, 0o700, 0o600)
    assert (directory / "password").read_text().strip() not in repr(server)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(psycopg.conninfo.make_conninfo(server.dsn(), password="wrong"))


def test_it_never_runs_as_root(server: EmbeddedPostgres) -> None:
    user = server_user()
    owner = os.geteuid() if user is None else user.uid

    assert owner != 0
    assert Path(f"/proc/{server.pid}").stat().st_uid == owner


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_data_and_password_survive_and_the_address_stays(server: EmbeddedPostgres, kill: bool) -> None:
    remember(server)
    dsn = server.dsn("kept")
    if kill:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        os.waitpid(server.pid, 0)
    else:
        server.stop()

    server.start()

    assert server.dsn("kept") == dsn
    assert remembered(server) == (7,)
    assert server.createdb("kept") == dsn


def test_another_owner_gets_the_same_data(
    server: EmbeddedPostgres, directory: Path, request: pytest.FixtureRequest
) -> None:
    remember(server)
    server.stop()

    with EmbeddedPostgres(directory, bin_dir=server.bin_dir) as other:
        assert remembered(other) == (7,)


def test_a_pid_file_that_names_a_living_stranger_does_not_stop_it(server: EmbeddedPostgres, directory: Path) -> None:
    server.stop()
    (directory / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n{directory}/data\n")

    server.start()

    assert server.pid != os.getpid()


def test_two_owners_of_one_directory_are_refused(server: EmbeddedPostgres, directory: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="another process already runs the Postgres in"):
        EmbeddedPostgres(directory, bin_dir=server.bin_dir).start()


def test_an_initdb_that_was_killed_leaves_no_half_made_data(directory: Path) -> None:
    (directory / "data.new").mkdir()
    (directory / "data.new" / "PG_VERSION").write_text("18\n")

    with EmbeddedPostgres(directory, settings=DURABILITY_OFF) as server:
        assert psycopg.connect(server.dsn()).closed is False


@pytest.mark.needs("root")
def test_a_directory_that_the_servers_user_cannot_reach_is_named(directory: Path) -> None:
    closed = directory / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(EmbeddedPostgresError, match=f"may not enter .*{directory.name}"):
        EmbeddedPostgres(closed / "postgres").start()


def test_a_directory_without_the_programs_is_named(directory: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="holds no `initdb`"):
        EmbeddedPostgres(directory / "pg", bin_dir=directory).start()


def test_a_refused_setting_is_told_in_the_servers_words(directory: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="max_connections"):
        EmbeddedPostgres(directory, settings={"max_connections": "many"}).start()
