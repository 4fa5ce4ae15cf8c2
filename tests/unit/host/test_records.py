"""The records of bare-metal agents: durable, exclusive, and removed in one step."""

from __future__ import annotations

import fcntl
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hatchway.host.records import Ended, Intent, RecordDamagedError, Records
from hatchway.host.shim import write_record

AGENT = "scaler-0123"


@pytest.fixture
def records(tmp_path: Path) -> Records:
    records = Records(tmp_path / "state", "ours")
    records.make_state_dir()
    return records


def intent(installation_id: str = "ours") -> Intent:
    return Intent(AGENT, installation_id, "metal", "boot", datetime.now(UTC), timedelta(seconds=7))


def test_an_intent_comes_back_as_it_was_written(records: Records) -> None:
    records.prepare(AGENT)
    written = intent()

    records.write_intent(written)

    assert records.intent(AGENT) == written
    assert stat.S_IMODE((records.path(AGENT) / "intent.json").stat().st_mode) == 0o600


def test_the_directories_can_be_passed_and_not_listed_by_others(records: Records) -> None:
    before = os.umask(0)
    try:
        records.prepare(AGENT)
    finally:
        os.umask(before)

    for directory in (records.state_dir, records.path(AGENT)):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o711


def test_a_state_directory_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o750)

    Records(tmp_path / "state", "ours").make_state_dir()

    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o750


def test_what_was_not_written_is_none(records: Records) -> None:
    assert records.intent(AGENT) is None
    assert records.started(AGENT) is None
    assert records.ended(AGENT) is None


@pytest.mark.parametrize("code", [0, 137, None])
def test_an_end_comes_back_with_its_code(records: Records, code: int | None) -> None:
    records.prepare(AGENT)
    write_record(str(records.path(AGENT)), "ended.json", {"exit_code": code})

    assert records.ended(AGENT) == Ended(code)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"exit_code": "x"}'])
def test_a_damaged_record_names_its_file(records: Records, content: str) -> None:
    records.prepare(AGENT)
    file = records.path(AGENT) / "ended.json"
    file.write_text(content)

    with pytest.raises(RecordDamagedError, match=str(file)):
        records.ended(AGENT)


@pytest.mark.parametrize("agent_id", ["", ".", "..", "../x", "a/b", "/etc", ".hidden", "a\0b", "x" * 129, "a b"])
def test_an_id_that_is_no_file_name_is_refused(records: Records, agent_id: str) -> None:
    with pytest.raises(ValueError, match="cannot name an agent"):
        records.path(agent_id)
    assert not records.is_ours(agent_id)


def test_the_lock_has_one_holder_until_it_is_closed(records: Records) -> None:
    records.prepare(AGENT)
    lock = records.try_lock(AGENT)
    assert lock is not None

    assert records.try_lock(AGENT) is None
    lock.close()

    again = records.try_lock(AGENT)
    assert again is not None
    again.close()


def test_a_copy_of_the_lock_holds_it_after_the_first_is_closed(records: Records) -> None:
    records.prepare(AGENT)
    lock = records.try_lock(AGENT)
    assert lock is not None
    inherited = os.dup(lock.fd)

    lock.close()

    assert records.try_lock(AGENT) is None
    os.close(inherited)


def test_the_lock_of_a_record_that_is_removed_meanwhile_is_not_taken_for_the_new_ones(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.prepare(AGENT)
    flock, removals = fcntl.flock, [1]

    def overtaken(fd: int, operation: int) -> None:
        if removals:
            removals.pop()
            records.remove(AGENT)
            records.prepare(AGENT)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", overtaken)

    lock = records.try_lock(AGENT)

    assert lock is not None
    assert os.path.samestat(os.fstat(lock.fd), (records.path(AGENT) / "lock").stat())
    lock.close()


def test_no_record_has_no_lock(records: Records) -> None:
    with pytest.raises(FileNotFoundError):
        records.try_lock(AGENT)


def test_a_missing_state_directory_is_no_evidence_of_absence(records: Records) -> None:
    records.state_dir.rmdir()

    with pytest.raises(NotADirectoryError, match="state directory is missing"):
        records.try_lock(AGENT)


def test_removal_takes_the_whole_record_at_once_and_frees_the_id(records: Records) -> None:
    records.prepare(AGENT)
    records.write_intent(intent())
    lock = records.try_lock(AGENT)
    assert lock is not None

    left = records.remove(AGENT)
    records.prepare(AGENT)
    fresh = records.try_lock(AGENT)

    assert left is None
    assert fresh is not None, "the lock of the removed record guards the new one"
    assert records.intent(AGENT) is None
    lock.close()
    fresh.close()


def test_an_interrupted_removal_is_no_record_and_is_finished_later(records: Records) -> None:
    records.prepare(AGENT)
    records.path(AGENT).rename(records.state_dir / f".removing-{AGENT}-1234")

    assert list(records.agent_ids()) == []
    assert records.clear_removed() == []
    assert list(records.state_dir.iterdir()) == []


def test_directories_without_write_permission_are_removed(records: Records) -> None:
    records.prepare(AGENT)
    cache = records.path(AGENT) / "work" / "mod" / "cache"
    cache.mkdir(parents=True)
    (cache / "file").write_text("x")
    for directory in (cache, cache.parent):
        directory.chmod(0o555)

    assert records.remove(AGENT) is None
    assert list(records.state_dir.iterdir()) == []


def test_removal_does_not_follow_links_out_of_the_record(records: Records, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    records.prepare(AGENT)
    (records.path(AGENT) / "link").symlink_to(tmp_path / "precious")

    records.remove(AGENT)

    assert (tmp_path / "precious" / "file").read_text() == "x"


def test_only_directories_named_like_agents_are_records(records: Records) -> None:
    records.prepare(AGENT)
    (records.state_dir / "host-id").write_text("m-1")
    (records.state_dir / ".removing-x").mkdir()
    (records.state_dir / "link").symlink_to(records.path(AGENT))

    assert list(records.agent_ids()) == [AGENT]


@pytest.mark.parametrize(("installation", "ours"), [("ours", True), ("theirs", False)])
def test_a_record_belongs_to_who_signed_it(records: Records, installation: str, ours: bool) -> None:
    records.prepare(AGENT)
    assert records.is_ours(AGENT), "an unsigned record is anybody's to finish or remove"

    records.write_intent(intent(installation))

    assert records.is_ours(AGENT) is ours


def test_the_end_of_the_log_spans_both_files(records: Records) -> None:
    records.prepare(AGENT)
    (records.path(AGENT) / "log.1").write_text("0123456789")
    (records.path(AGENT) / "log").write_text("abcde")

    assert records.log_end(AGENT, 8) == "789abcde"
    assert records.log_end(AGENT, 3) == "cde"
    assert records.log_end(AGENT, 100) == "0123456789abcde"
