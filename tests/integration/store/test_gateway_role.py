"""The gateway's role may execute the door's functions, and reads no table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import psycopg
import pytest
from psycopg import sql

from hatchway.store.claims import Claims, Redeemed
from hatchway.store.installation import tied_namespace
from hatchway.store.migrate import check_revision
from hatchway.store.outcomes import Completed, Outcomes, Refusal
from hatchway.store.pool import Database
from hatchway.store.presence import Beat, Presence
from hatchway.store.slots import Slots
from hatchway.store.tokens import Tokens
from tests.integration.store.factory import TABLES, adopted, minted, reservation

PASSWORD = "for-this-test"


@pytest.fixture
def gateway_dsn(dsn: str) -> Iterator[str]:
    """The same database, through a login that is granted the gateway's role and nothing else."""
    with psycopg.connect(dsn, autocommit=True) as owner:
        name = sql.Identifier(f"login_{owner.info.dbname}")
        owner.execute(
            sql.SQL("create role {} login password {} in role hatchway_gateway").format(name, sql.Literal(PASSWORD))
        )
        yield psycopg.conninfo.make_conninfo(dsn, user=f"login_{owner.info.dbname}", password=PASSWORD)
        owner.execute(sql.SQL("drop owned by {}").format(name))
        owner.execute(sql.SQL("drop role {}").format(name))


@pytest.fixture
async def door(gateway_dsn: str) -> AsyncIterator[Database]:
    async with Database.open(gateway_dsn, max_size=2) as database:
        yield database


async def test_the_list_of_tables_is_complete(db: Database) -> None:
    tables = await db.fetch_all("select tablename from pg_tables where schemaname = 'public' order by 1")

    assert [t for (t,) in tables] == sorted([*TABLES, "alembic_version"])


@pytest.mark.parametrize("table", [*TABLES, "alembic_version"])
@pytest.mark.parametrize("statement", ["select * from {}", "delete from {}", "insert into {} default values"])
def test_the_gateway_may_not_touch_a_table(gateway_dsn: str, table: str, statement: str) -> None:
    with psycopg.connect(gateway_dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(sql.SQL(statement).format(sql.Identifier(table)))


async def test_the_gateway_may_do_all_that_agents_ask_of_it(db: Database, door: Database) -> None:
    await adopted(db, "a1", "job-1")
    await Slots(db).reserve(reservation("a2"))
    await minted(db, "a2", "claim-2")

    await check_revision(door)
    await Presence(door).instance_beat("gateway-1", "gateway", "1", [], None)
    assert await Claims(door).redeem("claim-2", "nonce", "token-2") == Redeemed("a2")
    token = await Tokens(door).lookup("token-2")
    assert token is not None
    assert (await Presence(door).beat("gateway-1", [("a1", "reg-1")]))["a1"].answer is Beat.OK
    assert isinstance(await Outcomes(door).complete("a1", "reg-1", "succeeded", 0), Completed)
    await Slots(db).release("a1", "completed")
    assert await Outcomes(door).refusal("a1") == Refusal("ended", "completed")
    assert await tied_namespace(door) is None


@pytest.mark.parametrize(
    "function",
    ["reserve", "release", "adopt", "close", "decide", "mint", "stamp_host", "confirm_spawned", "request_drain",
     "stamp_engine", "apply_config", "accept", "pump_all", "failed"],
)  # fmt: skip
async def test_the_gateway_may_not_do_what_workers_do(door: Database, function: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await door.call(f"hatchway_{function}", {"agent_id": "a1"})


async def test_nobody_else_may_execute_anything(dsn: str, db: Database) -> None:
    executable = await db.fetch_all(
        """
        select p.proname
          from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
         where p.pronamespace = 'public'::regnamespace and a.grantee = 0
        """
    )
    assert executable == []


async def test_every_function_with_the_owners_rights_fixes_its_search_path(db: Database) -> None:
    loose = await db.fetch_all(
        """
        select proname from pg_proc
         where pronamespace = 'public'::regnamespace
           and prosecdef
           and not coalesce(proconfig, '{}') @> array['search_path=public, pg_temp']
        """
    )
    definers = await db.fetch_value(
        "select count(*) from pg_proc where pronamespace = 'public'::regnamespace and prosecdef"
    )
    assert loose == []
    assert definers == 8


async def test_the_store_refuses_to_call_anything_but_its_own_functions(db: Database) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        await db.call("pg_sleep", {"seconds": timedelta(hours=1).total_seconds()})
