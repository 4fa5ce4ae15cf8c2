"""Who this machine is, and which process a pid names."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from hatchway.host.identity import ProcessId, boot_id, default_state_dir, host_id_of_machine, process_stat

RAW = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def machine_id(tmp_path: Path) -> Path:
    path = tmp_path / "machine-id"
    path.write_text(RAW + "\n")
    return path


def test_the_host_id_is_stable_and_does_not_show_the_machine_id(machine_id: Path, tmp_path: Path) -> None:
    first = host_id_of_machine(tmp_path / "unused", machine_id)

    assert first == host_id_of_machine(tmp_path / "unused", machine_id)
    assert first.startswith("m-")
    assert RAW[:8] not in first
    assert not (tmp_path / "unused").exists()


def test_machines_differ(machine_id: Path, tmp_path: Path) -> None:
    first = host_id_of_machine(tmp_path / "unused", machine_id)
    machine_id.write_text(RAW[::-1])

    assert host_id_of_machine(tmp_path / "unused", machine_id) != first


@pytest.mark.parametrize("content", [None, "", "uninitialized\n", "not hex"])
def test_without_a_machine_id_one_is_generated_and_kept(tmp_path: Path, content: str | None) -> None:
    machine_id, fallback = tmp_path / "machine-id", tmp_path / "state" / "host-id"
    if content is not None:
        machine_id.write_text(content)

    first = host_id_of_machine(fallback, machine_id)

    assert first == host_id_of_machine(fallback, machine_id)
    assert first != host_id_of_machine(tmp_path / "other" / "host-id", machine_id)
    assert list(fallback.parent.iterdir()) == [fallback]


def test_workers_that_start_together_generate_one_host_id(tmp_path: Path) -> None:
    found: list[str] = []
    together = threading.Barrier(8)

    def start() -> None:
        together.wait()
        found.append(host_id_of_machine(tmp_path / "host-id", tmp_path / "absent"))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_damaged_host_id_file_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "host-id").write_text("two words")

    with pytest.raises(OSError, match="holds no host id: remove it"):
        host_id_of_machine(tmp_path / "host-id", tmp_path / "absent")


@pytest.mark.parametrize(
    ("uid", "xdg", "wanted"),
    [(0, None, "/var/lib/hatchway"), (1000, "/x", "/x/hatchway"), (1000, None, "/h/.local/state/hatchway")],
)
def test_the_state_directory_follows_the_user(
    monkeypatch: pytest.MonkeyPatch, uid: int, xdg: str | None, wanted: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setenv("HOME", "/h")
    if xdg is None:
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_STATE_HOME", xdg)

    assert default_state_dir() == Path(wanted)


def test_the_boot_id_is_that_of_this_boot() -> None:
    assert len(boot_id()) == 36
    assert boot_id() == boot_id()


def test_a_process_is_known_by_pid_and_start_time() -> None:
    stat = process_stat(os.getpid())

    assert stat is not None
    assert (stat.pid, stat.parent, stat.session) == (os.getpid(), os.getppid(), os.getsid(0))
    assert stat.id.is_alive()
    assert not ProcessId(os.getpid(), stat.start_time + 1).is_alive(), "a recycled pid passed for the first process"


def test_a_zombie_and_a_reaped_process_are_dead() -> None:
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        zombie = process_stat(child.pid)
        assert zombie is not None
        assert zombie.state == "Z"
        assert not zombie.id.is_alive()

    assert process_stat(child.pid) is None
    assert not zombie.id.is_alive()


def test_a_command_name_with_spaces_and_parentheses_does_not_mislead(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "60"]) as child:
        try:
            stat = process_stat(child.pid)
        finally:
            child.kill()

    assert stat is not None
    assert stat.parent == os.getpid()
