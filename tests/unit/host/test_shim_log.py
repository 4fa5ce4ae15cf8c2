"""The agent's output on its way to the disk: redacted also across reads, and bounded."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatchway.host.shim_log import MASK, Log, Redactor

LETTERS = st.text("abc", max_size=12).map(str.encode)


@pytest.mark.scenario("S41")
@given(st.lists(LETTERS, max_size=12), st.lists(LETTERS, max_size=4))
def test_redaction_does_not_depend_on_where_reads_cut_the_stream(chunks: list[bytes], forms: list[bytes]) -> None:
    whole, cut = Redactor(forms), Redactor(forms)
    at_once = whole.feed(b"".join(chunks)) + whole.flush()

    in_pieces = b"".join(cut.feed(chunk) for chunk in chunks) + cut.flush()

    assert in_pieces == at_once
    assert not any(form in piece for form in forms if form for piece in in_pieces.split(MASK))


def test_output_that_cannot_become_a_secret_is_not_held_back() -> None:
    redactor = Redactor([b"secret"])

    assert redactor.feed(b"plain line\n") == b"plain line\n"
    assert redactor.feed(b"a secr") == b"a "
    assert redactor.feed(b"et and sec") == MASK + b" and "
    assert redactor.flush() == b"sec"


def test_the_log_is_capped_and_keeps_its_end(tmp_path: Path) -> None:
    log = Log(str(tmp_path), cap=1000)
    lines = [f"line {n:05}\n".encode() for n in range(1000)]

    for line in lines:
        log.write(line)

    kept = (tmp_path / "log.1").read_bytes() + (tmp_path / "log").read_bytes()
    assert 500 <= len(kept) <= 1000
    assert b"".join(lines).endswith(kept)


def test_one_write_larger_than_the_cap_keeps_its_end(tmp_path: Path) -> None:
    log = Log(str(tmp_path), cap=100)

    log.write(b"x" * 1000 + b"end")

    assert (tmp_path / "log").read_bytes().endswith(b"end")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 100


def test_the_log_is_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Log(str(tmp_path), cap=100).write(b"x")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_a_log_that_cannot_be_written_loses_output_and_nothing_else(tmp_path: Path) -> None:
    log = Log(str(tmp_path), cap=10_000)
    os.close(log.fd)
    log.fd = os.open("/dev/full", os.O_WRONLY)  # every write fails with ENOSPC

    log.write(b"lost")

    os.close(log.fd)
    log.fd = os.open(log.path, os.O_WRONLY | os.O_APPEND)
    log.write(b"kept")
    assert (tmp_path / "log").read_bytes() == b"kept"


def _gone(directory: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(directory)


def _no_room_for_a_file(_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", full)


@pytest.mark.parametrize("happens", [_gone, _no_room_for_a_file])
def test_a_log_that_cannot_be_turned_over_loses_output_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    directory = tmp_path / "agent"
    directory.mkdir()
    log = Log(str(directory), cap=100)
    log.write(b"x" * 50)

    happens(directory, monkeypatch)
    log.write(b"y" * 200 + b"end")

    kept = Path(f"/proc/self/fd/{log.fd}").read_bytes()  # also of a file that has no name any more
    assert kept.endswith(b"end")
    assert len(kept) <= 50
