"""The user data of an instance, run by a real shell: quoting, ending, hiding, and what is read of the console."""

from __future__ import annotations

import base64
import gzip
import os
import subprocess
from datetime import timedelta
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from hatchway.backends.ec2_user_data import (
    AGENT,
    BEGIN,
    END,
    LIMIT,
    PLACEHOLDERS,
    Boot,
    embedded_agent,
    least_size,
    printed,
    unknown_placeholders,
    user_data,
)
from hatchway.config.ec2_schema import DEFAULT_USER_DATA

CLAIM = "claim-T0pS3cret/with+odd=signs.*[a]^$\\&"
NASTY = "a=b c\n'\"$(touch hacked)`touch hacked`; é"


def boot(template: str, **keys: Any) -> Boot:
    keys = {"agent_id": "scaler-1", "env": {}, "values": dict.fromkeys(PLACEHOLDERS, "x"), "claim": CLAIM, **keys}
    return Boot(template=template, **keys)


def run(script: str, directory: Path, shell: str = "/bin/sh") -> tuple[str, list[str]]:
    """What it printed, and what it told `shutdown`. `shell`: what `sh` is on that machine."""
    (directory / "bin").mkdir(exist_ok=True)
    (directory / "bin" / "sh").symlink_to(shell)
    switch = directory / "bin" / "shutdown"
    switch.write_text(f'#!/bin/sh\necho "$@" >>{directory}/switched\n')
    switch.chmod(0o755)
    file = directory / "user-data"
    file.write_text(script)
    file.chmod(0o700)
    done = subprocess.run(
        [str(directory / "bin" / "sh"), str(file)],
        cwd=directory, capture_output=True, text=True, timeout=30, check=True, start_new_session=True,
        env={"PATH": f"{directory}/bin:{os.environ['PATH']}", "TMPDIR": str(directory)},
    )  # fmt: skip
    return done.stdout + done.stderr, (directory / "switched").read_text().splitlines()


def test_every_value_arrives_as_it_is_and_none_is_run(tmp_path: Path) -> None:
    template = 'printf "%s|%s|" "$ODD" {{jobId}}'
    values = {**dict.fromkeys(PLACEHOLDERS, ""), "jobId": NASTY}

    said, _ = run(user_data(boot(template, env={"ODD": NASTY}, values=values)), tmp_path)

    assert f"{NASTY}|{NASTY}|" in said
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("exit 23", 23),
        ("true", 0),
        ("exec sh -c 'exit 7'", 7),
        ("kill -9 $(exec sh -c 'echo $PPID')", 137),
        ("if", 2),
        ("nonsense", 127),
    ],
)
def test_the_instance_is_turned_off_when_the_script_ends_and_says_how(
    tmp_path: Path, template: str, code: int
) -> None:  # fmt: skip
    said, switched = run(user_data(boot(template)), tmp_path)

    assert printed(said).exit_code == code
    assert switched[-1] == "-P now"


def test_a_child_that_keeps_the_output_open_keeps_no_instance_alive(tmp_path: Path) -> None:
    said, switched = run(user_data(boot("sleep 60 & echo done; exit 4")), tmp_path)

    assert printed(said).exit_code == 4
    assert switched == ["-P now"]


@pytest.mark.scenario("S41")
def test_the_claim_is_masked_on_the_console_in_every_spelling(tmp_path: Path) -> None:
    template = (
        'echo "plain $CLAIM end"; printf "x:%s" "$CLAIM" | base64 -w0; echo; printf "%s" "$CLAIM" | od -An -tx1 | '
        "tr -d ' \\n'; echo"
    )

    said, _ = run(user_data(boot(template, env={"CLAIM": CLAIM})), tmp_path)

    assert "plain [redacted] end" in said
    assert CLAIM not in said
    assert base64.b64encode(f"x:{CLAIM}".encode()).decode()[4:-4] not in said
    assert CLAIM.encode().hex() not in said


@pytest.mark.parametrize(
    ("lifetime", "minutes"), [(timedelta(seconds=1), 1), (timedelta(seconds=61), 2), (timedelta(hours=2), 120)]
)
def test_the_time_limit_is_set_before_anything_of_the_job_runs(
    tmp_path: Path, lifetime: timedelta, minutes: int
) -> None:  # fmt: skip
    _, switched = run(user_data(boot(f"cat {tmp_path}/switched", lifetime=lifetime)), tmp_path)

    assert switched == [f"-P +{minutes}", "-P now"]


SHELLS = {name: which(name) or "" for name in ("dash", "bash", "busybox")}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "name", ["UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "hatchway", "at_once", "reader", "IFS"]
)
def test_no_variable_of_a_job_keeps_its_script_from_running(tmp_path: Path, shell: str, name: str) -> None:
    """In bash, `export UID=…` ends the shell; a name of the prelude's own would lead it elsewhere."""
    env = {name: "/elsewhere", "AFTER": "it"}

    said, switched = run(user_data(boot('echo "ran: $AFTER"; exit 3', env=env)), tmp_path, SHELLS[shell])

    assert "ran: it" in said
    assert printed(said).exit_code == 3
    assert switched == ["-P now"]
    assert [file.name for file in tmp_path.glob("tmp*/env")] == []


def test_an_image_of_busybox_runs_the_script_and_hides_the_claim(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for tool in ("sed", "base64", "gunzip", "mktemp", "mkfifo", "cat", "rm", "sleep", "kill"):
        (tmp_path / "bin" / tool).symlink_to(SHELLS["busybox"])

    said, _ = run(user_data(boot('echo "plain $CLAIM end"; exit 3', env={"CLAIM": CLAIM})), tmp_path, SHELLS["busybox"])

    assert "plain [redacted] end" in said
    assert CLAIM not in said
    assert printed(said).exit_code == 3


def test_without_a_lifetime_there_is_no_time_limit(tmp_path: Path) -> None:
    _, switched = run(user_data(boot("true")), tmp_path)

    assert switched == ["-P now"]


def test_the_reference_agent_travels_whole_and_is_run(tmp_path: Path) -> None:
    said, _ = run(user_data(boot("{{ agent }} --help; exec {{agent}}")), tmp_path)

    assert gzip.decompress(base64.b64decode(embedded_agent())) == AGENT.read_bytes()
    assert "usage: " in said
    assert printed(said).exit_code == 64  # it was told of no gateway


def test_the_default_leaves_room_for_an_environment() -> None:
    assert least_size(DEFAULT_USER_DATA) < LIMIT - 3000


def test_placeholders_are_known_or_named() -> None:
    assert unknown_placeholders("".join(f"{{{{{name}}}}}" for name in PLACEHOLDERS)) == []
    assert unknown_placeholders("{{claim}} {{ agent }} {{}} ${x} {y}") == ["claim", ""]


def test_the_console_is_read_between_the_marks_and_without_what_systemd_adds() -> None:
    lines = ["[    1.0] Linux", BEGIN, "working", "the last line", f"{END}: 3", "reboot: Power down"]
    console = "\r\n".join([lines[0], *(f"[   12.345678] cloud-init[812]: {line}" for line in lines[1:-1]), lines[-1]])

    found = printed(console)

    assert (found.text, found.exit_code) == ("working\nthe last line", 3)


def test_before_the_script_has_begun_the_console_is_the_boots() -> None:
    found = printed("[    1.0] Linux\n[    2.0] systemd[1]: waiting for the network")

    assert "waiting for the network" in found.text
    assert found.exit_code is None
