"""Credential helpers are foreign programs: whatever one does, it is bounded, told by its kind, and never quoted."""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest

from hatchway.errors import AuthError, AuthUnavailable
from hatchway.registry.credential_helper import HelperMissing, ask_helper
from tests.support.namespaces import until
from tests.unit.registry.rig import MakeHelper

SECRET = "s3cr3t-of-the-helper"
pytestmark = pytest.mark.scenario("S33")


async def test_a_helper_is_given_the_server_and_its_answer_is_taken(tmp_path: Path, make_helper: MakeHelper) -> None:
    path = make_helper("good", f'cat > {tmp_path}/stdin; echo "$@" > {tmp_path}/arguments', answer=("bob", SECRET))

    answer = await ask_helper("good", "https://index.docker.io/v1/", {"PATH": path})

    assert answer is not None
    assert (answer.username, answer.secret) == ("bob", SECRET)
    assert (tmp_path / "stdin").read_text() == "https://index.docker.io/v1/"
    assert (tmp_path / "arguments").read_text() == "get\n"
    assert SECRET not in repr(answer)


@pytest.mark.parametrize("script", ["exec <&-", "sleep 0.2", "read x; (sleep 0.1)"])
async def test_a_helper_that_does_not_listen_or_is_slow_serves_all_the_same(
    make_helper: MakeHelper, script: str
) -> None:
    path = make_helper("odd", script, answer=("bob", SECRET))

    assert await ask_helper("odd", "ghcr.io", {"PATH": path}) is not None


@pytest.mark.parametrize(
    "script",
    [
        "echo 'credentials not found in native keychain'; exit 1",
        "echo 'error getting credentials - err: exit status 1, out: `credentials not found`'; exit 2",
        f"""echo '{json.dumps({"ServerURL": "x", "Username": "", "Secret": ""})}'""",
    ],
)
async def test_a_helper_that_has_nothing_is_no_error(make_helper: MakeHelper, script: str) -> None:
    assert await ask_helper("nothing", "ghcr.io", {"PATH": make_helper("nothing", script)}) is None


@pytest.mark.parametrize(
    "name",
    [
        "../evil", "..", ".", "", "/bin/sh", "a/b", "a\\b", "a b", "a;b", "$(id)", "-x", "a\0b", "a\nb", "é", ".hidden",
        "x" * 101,
    ],
)  # fmt: skip
async def test_a_name_that_is_a_path_or_a_command_is_refused_and_nothing_is_run(
    tmp_path: Path, make_helper: MakeHelper, name: str
) -> None:
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    evil.chmod(0o755)
    (tmp_path / "bin" / "docker-credential-..").mkdir()

    with pytest.raises(AuthError, match="no credential helper"):
        await ask_helper(name, "ghcr.io", {"PATH": f"{tmp_path}/bin:{tmp_path}"})

    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("name", ["ecr-login", "desktop.exe", "gcloud", "acr_env", "osxkeychain", "pass2"])
async def test_every_usual_name_is_one(make_helper: MakeHelper, name: str) -> None:
    path = make_helper(name, "", answer=("bob", SECRET))

    assert await ask_helper(name, "ghcr.io", {"PATH": path}) is not None


async def test_a_helper_that_is_not_there_is_told_from_one_that_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(HelperMissing, match="docker-credential-absent is not on this worker's PATH"):
        await ask_helper("absent", "ghcr.io", {"PATH": str(tmp_path)})

    program = tmp_path / "docker-credential-broken"
    program.write_bytes(b"\x7fELF no program at all")
    program.chmod(0o755)
    with pytest.raises(AuthError, match="cannot be run") as refused:
        await ask_helper("broken", "ghcr.io", {"PATH": str(tmp_path)})
    assert not isinstance(refused.value, HelperMissing)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (f"echo {SECRET}; echo {SECRET} >&2; exit 1", "failed with exit code 1"),
        (f"echo {SECRET}", "something else than JSON"),
        ("true", "something else than JSON"),
        ("head -c 60000 /dev/zero | tr '\\0' '['", "something else than JSON"),
        (f"""echo '["{SECRET}"]'""", "without a Username"),
        (f"""echo '"{SECRET}"'""", "without a Username"),
        (f"""echo '{{"Username": "{SECRET}"}}'""", "without a Username"),
        (f"""echo '{{"Username": ["{SECRET}"], "Secret": "x"}}'""", "without a Username"),
        ("head -c 10485760 /dev/zero", "printed more than 64 KiB"),
        ("exec yes", "printed more than 64 KiB"),
        ("kill -9 $$", "failed with exit code -9"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_an_error_that_quotes_nothing(
    make_helper: MakeHelper, script: str, words: str
) -> None:
    path = make_helper("bad", script)

    with pytest.raises(AuthError, match=words) as refused:
        await asyncio.wait_for(ask_helper("bad", "ghcr.io", {"PATH": path}), 20)

    assert "docker-credential-bad" in str(refused.value)
    assert SECRET not in str(refused.value)
    assert not isinstance(refused.value, AuthUnavailable)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    "script",
    [
        "exec sleep 600",
        "trap '' TERM; sleep 600; sleep 600",
        # it has ended, and something that it started holds its output open
        "sleep 600 &",
        "exec 0<&- 1>&- 2>&-; exec sleep 600",
        f"echo '{{}}'; {'while :; do :; done'}",
    ],
)
async def test_a_helper_that_hangs_is_given_up_in_time_and_nothing_of_it_stays(
    tmp_path: Path, make_helper: MakeHelper, script: str
) -> None:
    path = make_helper("slow", f"echo $$ > {tmp_path}/pid\n{script}")

    began = time.monotonic()
    with pytest.raises(AuthUnavailable, match=r"did not answer within 0\.5 s"):
        await ask_helper("slow", "ghcr.io", {"PATH": path}, timedelta(seconds=0.5))

    assert time.monotonic() - began < 10
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: not _group_lives(pid), what="the end of all that the helper started")


async def test_a_cancelled_question_ends_the_helper(tmp_path: Path, make_helper: MakeHelper) -> None:
    path = make_helper("slow", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    asking = asyncio.create_task(ask_helper("slow", "ghcr.io", {"PATH": path}))
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), what="the helper")

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    await until(lambda: not _group_lives(int((tmp_path / "pid").read_text())), what="the helper's end")


@pytest.mark.scenario("S41")
async def test_a_helper_sees_nothing_of_the_workers_secrets(tmp_path: Path, make_helper: MakeHelper) -> None:
    path = make_helper("curious", f"env > {tmp_path}/env", answer=("bob", SECRET))
    environ = {
        "PATH": path, "HOME": "/home/x", "HATCHWAY_SECRET_A": SECRET, "DATABASE_URL": SECRET, "AWS_SECRET_ACCESS_KEY":
        SECRET, "LD_PRELOAD": "/x.so", "TEMPORAL_API_KEY": SECRET,
    }  # fmt: skip

    await ask_helper("curious", "ghcr.io", environ)

    seen = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert seen - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "HOME"}


def _group_lives(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True
