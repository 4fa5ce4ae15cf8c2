"""As whom, with what and how a bare-metal agent is started; and what each refusal means."""

from __future__ import annotations

import errno
import os
import pwd
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from hatchway.backends import bare_metal_launch, bare_metal_order
from hatchway.backends.bare_metal_order import account_of, command_of, environment_of, order_of
from hatchway.config.schema import LabelSet
from hatchway.errors import PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from tests.contract.bare_metal import bare_metal_spec

ROOT, SOMEBODY = 0, 1234567


def label_set(**fields: Any) -> LabelSet:
    return LabelSet(labels=["linux"], **fields)


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ROOT)


@pytest.fixture
def as_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)


@pytest.fixture
def fresh_python_search() -> Iterator[None]:
    bare_metal_order._python_for.cache_clear()
    yield
    bare_metal_order._python_for.cache_clear()


@pytest.mark.usefixtures("as_root")
def test_a_root_worker_becomes_the_user_with_all_its_groups() -> None:
    account = account_of(label_set(user="nobody"), "a")

    nobody = pwd.getpwnam("nobody")
    assert account is not None
    assert (account.uid, account.gid) == (nobody.pw_uid, nobody.pw_gid)
    assert nobody.pw_gid in account.groups


@pytest.mark.usefixtures("as_root")
def test_a_user_may_be_given_by_number() -> None:
    account = account_of(label_set(user=str(pwd.getpwnam("nobody").pw_uid)), "a")

    assert account is not None
    assert account.name == "nobody"


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "must name the `user`.*`runAsRoot: true`"),
        ({"user": "root"}, "'root' is root: .*`runAsRoot: true`"),
        ({"user": "0"}, "'0' is root"),
        ({"user": "no-such-user"}, "no user 'no-such-user': create it"),
        ({"user": "99999999999999999999"}, "no user"),
    ],
)
def test_a_root_worker_runs_nothing_as_root_by_accident(fields: dict[str, str], sentence: str) -> None:
    with pytest.raises(PermanentSpawnError, match=sentence) as raised:
        account_of(label_set(**fields), "a")

    assert raised.value.code is SpawnCode.INVALID_SPEC


@pytest.mark.usefixtures("as_root")
def test_run_as_root_insists() -> None:
    assert account_of(label_set(run_as_root=True), "a") is None


@pytest.mark.usefixtures("as_somebody")
@pytest.mark.parametrize(("user", "said"), [(None, 0), (str(SOMEBODY), 0), ("nobody", 1)])
def test_a_worker_that_is_not_root_stays_itself_and_says_so(user: str | None, said: int) -> None:
    with structlog.testing.capture_logs() as logs:
        account = account_of(label_set(user=user), "a")

    assert account is None
    assert [entry["event"] for entry in logs] == ["user ignored: the worker is not root"] * said


def test_the_environment_is_built_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKERS_OWN", "1")

    environment = environment_of(bare_metal_spec("a", ["x"], {"KICI_AGENT_ID": "a", "LANG": "de_DE.UTF-8"}), Path("/h"))

    assert environment == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/h",
        "LANG": "de_DE.UTF-8",
        "KICI_AGENT_ID": "a",
    }


@pytest.mark.parametrize(("name", "value"), [("A", "hush\0"), ("A\0", "hush"), ("A=B", "hush"), ("", "hush")])
def test_a_variable_that_no_process_can_have_is_refused_without_its_value(name: str, value: str) -> None:
    with pytest.raises(PermanentSpawnError, match="environment variable") as raised:
        environment_of(bare_metal_spec("a", ["x"], {name: value}), Path("/h"))

    assert raised.value.code is SpawnCode.INVALID_SPEC
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("command", [[], [""]])
def test_an_empty_command_is_refused(tmp_path: Path, command: list[str]) -> None:
    with pytest.raises(PermanentSpawnError, match="`command` is empty"):
        command_of(bare_metal_spec("a", command, {}), None, tmp_path)


@pytest.mark.usefixtures("fresh_python_search")
def test_without_a_command_the_reference_agent_is_copied_where_everyone_can_read_it(tmp_path: Path) -> None:
    python, agent = command_of(bare_metal_spec("a", None, {}), None, tmp_path)

    assert python == sys.executable
    assert Path(agent).parent == tmp_path
    assert Path(agent).read_bytes() == bare_metal_order.AGENT.read_bytes()
    assert stat.S_IMODE(Path(agent).stat().st_mode) == 0o644


@pytest.mark.usefixtures("fresh_python_search")
@pytest.mark.parametrize(
    "python",
    ["#!/bin/sh\nexit 1\n", "#!/nonexistent\n", None],
    ids=["too old", "broken", "absent"],
)
def test_no_python_that_the_user_can_run_is_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str | None
) -> None:
    candidate = tmp_path / "python"
    if python is not None:
        candidate.write_text(python)
        candidate.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(candidate))
    monkeypatch.setattr(bare_metal_order, "SYSTEM_PYTHONS", ())

    with pytest.raises(PermanentSpawnError, match=r"install python3, or give the label set a `command`") as raised:
        command_of(bare_metal_spec("a", None, {}), None, tmp_path)

    assert raised.value.code is SpawnCode.NO_AGENT


def order() -> dict[str, Any]:
    return {"argv": ["/opt/agent"], "home": "/state/a/work", "directory": "/srv/build"}


@pytest.mark.parametrize(
    ("stage", "number", "kind", "code", "sentence"),
    [
        ("exec", errno.ENOENT, PermanentSpawnError, SpawnCode.COMMAND_NOT_FOUND, "'/opt/agent' cannot be run"),
        ("exec", errno.EACCES, PermanentSpawnError, SpawnCode.COMMAND_NOT_FOUND, "Permission denied"),
        ("exec", errno.ENOEXEC, PermanentSpawnError, SpawnCode.COMMAND_NOT_FOUND, "interpreter in its first line"),
        ("exec", errno.E2BIG, PermanentSpawnError, SpawnCode.INVALID_SPEC, "too long"),
        ("exec", errno.ENOMEM, TransientSpawnError, SpawnCode.CAPACITY, "out of processes, memory"),
        ("user", errno.EAGAIN, TransientSpawnError, SpawnCode.CAPACITY, "out of processes, memory"),
        ("user", errno.EPERM, PermanentSpawnError, SpawnCode.INVALID_SPEC, "step 'user'"),
        ("home", errno.EACCES, PermanentSpawnError, SpawnCode.INVALID_SPEC, "/state/a/work.*chmod o.x"),
        ("directory", errno.ENOENT, PermanentSpawnError, SpawnCode.INVALID_SPEC, "`workingDirectory` '/srv/build'"),
        ("record", errno.ENOSPC, TransientSpawnError, SpawnCode.DISK_FULL, "free some space"),
    ],
)
def test_each_refusal_says_its_consequence(
    stage: str, number: int, kind: type[SpawnError], code: SpawnCode, sentence: str
) -> None:
    with pytest.raises(SpawnError, match=sentence) as raised:
        bare_metal_launch._check(f'{{"refused": {{"stage": "{stage}", "errno": {number}}}}}\n'.encode(), order())

    assert type(raised.value) is kind
    assert raised.value.code is code


@pytest.mark.parametrize("answer", [None, b""], ids=["no answer", "died"])
def test_a_supervisor_that_does_not_answer_may_be_tried_again(answer: bytes | None) -> None:
    with pytest.raises(TransientSpawnError) as raised:
        bare_metal_launch._check(answer, order())

    assert raised.value.code is SpawnCode.CAPACITY


def test_the_order_carries_the_stop_grace_and_the_secrets_in_every_spelling(tmp_path: Path) -> None:
    told = order_of(bare_metal_spec("a", ["x"], {}, grace=4.5), None, tmp_path, "boot", None)

    assert told["grace"] == 4.5
    assert len(told["redact"]) > 3
    assert (tmp_path / "work").is_dir()
