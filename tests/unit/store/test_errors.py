"""What a driver's error means to a caller of the store."""

from __future__ import annotations

import psycopg
import pytest
from psycopg_pool import PoolTimeout

from hatchway.errors import StoreContended, StoreUnreachable
from hatchway.store.pool import translated


def error_of(sqlstate: str) -> psycopg.Error:
    return psycopg.errors.lookup(sqlstate)("said by the server")


@pytest.mark.parametrize("sqlstate", ["55P03", "57014", "40P01", "40001"])
def test_contention_means_that_nothing_happened(sqlstate: str) -> None:
    meaning = translated(error_of(sqlstate))

    assert isinstance(meaning, StoreContended)
    assert sqlstate in str(meaning)


@pytest.mark.parametrize("sqlstate", ["08000", "08003", "08006", "57P01", "57P02", "57P03", "25P03", "53300"])
def test_a_server_that_leaves_is_unreachable(sqlstate: str) -> None:
    assert isinstance(translated(error_of(sqlstate)), StoreUnreachable)


@pytest.mark.parametrize(
    "sqlstate",
    [
        "25006",  # a primary that became a standby, or was told to be read-only
        "25P04", "28000", "28P01", "40003",
        "53000", "53100", "53200", "53400",
        "57000", "57P04", "57P05",
        "58000", "58030", "58P01",
        "F0000", "XX000", "XX001", "XX002",
    ],
)  # fmt: skip
def test_what_the_server_cannot_do_now_is_an_outage_and_no_bug(sqlstate: str) -> None:
    meaning = translated(error_of(sqlstate))

    assert isinstance(meaning, StoreUnreachable)
    assert sqlstate in str(meaning)


@pytest.mark.parametrize("sqlstate", ["40000", "40002", "72000"])
def test_whatever_rolls_a_transaction_back_for_others_is_contention(sqlstate: str) -> None:
    assert isinstance(translated(_any_error_of(sqlstate)), StoreContended)


def test_a_code_of_a_later_release_is_judged_by_its_class() -> None:
    """The driver does not know it, and gives it the general type."""
    assert isinstance(translated(_any_error_of("57P99")), StoreUnreachable)


def _any_error_of(sqlstate: str) -> psycopg.Error:
    error = psycopg.DatabaseError("said by the server")
    error.sqlstate = sqlstate
    return error


@pytest.mark.parametrize(
    "error",
    [
        psycopg.OperationalError("server closed the connection unexpectedly"),
        psycopg.InterfaceError("the connection is closed"),
        PoolTimeout("couldn't get a connection after 5.00 sec"),
        TimeoutError(),
    ],
)
def test_an_error_without_a_sqlstate_is_unreachable(error: Exception) -> None:
    assert isinstance(translated(error), StoreUnreachable)


@pytest.mark.parametrize(
    "error",
    [error_of("42P01"), error_of("23505"), error_of("42501"), psycopg.ProgrammingError("no sqlstate"), ValueError()],
)
def test_a_bug_is_left_as_it_is(error: Exception) -> None:
    assert translated(error) is None


def test_what_the_driver_says_on_several_lines_is_one_sentence_that_says_nothing_twice() -> None:
    error = psycopg.OperationalError("connection failed: connection to server failed: refused\n\tIs it running?\n")

    assert str(translated(error)) == (
        "the connection to Postgres failed: connection to server failed: refused Is it running?"
    )
