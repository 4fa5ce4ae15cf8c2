"""What only host processes can show: rights, sessions, directories, the log, and starts that fail or meet."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pwd
import resource
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hatchway.backends import bare_metal_order
from hatchway.backends.bare_metal import BareMetalBackend
from hatchway.errors import DestroyError, HatchwayError, PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.host.identity import process_stat
from hatchway.host.records import Records
from hatchway.model import ScaleDownReason
from tests.contract.backend import (
    Behaviour,
    destroy,
    environment_for,
    exit_of,
    facts_for,
    fresh_agent_id,
    live_becomes,
    silent,
)
from tests.contract.bare_metal import BareMetalHarness, bare_metal_spec, shims_of
from tests.integration.backends.scripts import run, shell

LIBCS_OWN_SIGNALS = 0b11 << 31
"""32 and 33: what posix_spawn starts, as make does, ignores them, and no program may change that."""


@pytest.mark.needs("root")
async def test_the_agent_is_its_user_and_can_become_nobody_else(harness: BareMetalHarness) -> None:
    nobody = pwd.getpwnam("nobody")

    text = await run(
        harness, "grep -E '^(Uid|Gid|Groups|NoNewPrivs|CapEff|SigIgn|SigBlk):' /proc/self/status | tr '\t' ' '"
    )

    status = dict(line.split(":", 1) for line in text.split("\n"))
    assert status["Uid"].split() == [str(nobody.pw_uid)] * 4
    assert status["Gid"].split() == [str(nobody.pw_gid)] * 4
    assert status["Groups"].split() == [str(nobody.pw_gid)]
    assert status["NoNewPrivs"].strip() == "1"
    assert int(status["CapEff"], 16) == 0
    assert int(status["SigIgn"], 16) & ~LIBCS_OWN_SIGNALS == 0
    assert int(status["SigBlk"], 16) == 0


@pytest.fixture
def workers_may_dump_core() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


@pytest.mark.usefixtures("workers_may_dump_core")
async def test_the_agent_starts_in_a_clean_place(harness: BareMetalHarness) -> None:
    text = await run(
        harness,
        'pwd; echo "$HOME"; umask; ulimit -c; readlink /proc/self/fd/0; ls /proc/self/fd | wc -l; touch "$HOME/x"',
    )

    where, home, umask, core, stdin, descriptors = text.split("\n")
    assert where == home
    assert Path(home).name == "work"
    assert umask == "0022"
    assert core == "0", "a core file would put the claim on the disk"
    assert stdin == "/dev/null"
    assert int(descriptors) == 4, "0, 1, 2 and the one that ls reads with"


async def test_a_script_may_open_its_own_standard_error(harness: BareMetalHarness) -> None:
    assert await run(harness, "echo to stderr > /dev/stderr; echo to stdout > /dev/stdout") == "to stderr\nto stdout"


async def test_the_agent_has_a_session_of_its_own_apart_from_the_worker(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()

    ref = await harness.backend.spawn(shell(agent_id, "exec sleep 3600"), silent)

    agent = process_stat(int(ref.ref))
    (shim,) = shims_of(agent_id)
    supervisor = process_stat(shim)
    assert agent is not None
    assert supervisor is not None
    assert (agent.session, agent.parent) == (agent.pid, shim)
    assert supervisor.session not in (agent.session, os.getsid(0))
    assert supervisor.parent != os.getpid(), "the worker would have to wait for it"
    assert Path(f"/proc/{shim}/environ").read_bytes() == b""


async def test_the_working_directory_is_used_where_the_label_set_names_one(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    await harness.backend.spawn(shell(agent_id, "pwd", working_directory="/usr"), silent)

    await exit_of(harness.backend, agent_id)

    assert await harness.backend.logs(agent_id) == "/usr"


@pytest.mark.needs("root")
@pytest.mark.parametrize("directory", ["/nonexistent", "/etc/passwd", "closed"])
async def test_a_working_directory_that_the_user_cannot_enter_is_refused(
    harness: BareMetalHarness, tmp_path: Path, directory: str
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    agent_id = fresh_agent_id()
    spec = shell(agent_id, "pwd", working_directory=str(tmp_path / directory))

    with pytest.raises(PermanentSpawnError, match="`workingDirectory`") as raised:
        await harness.backend.spawn(spec, silent)

    assert raised.value.code is SpawnCode.INVALID_SPEC
    assert await harness.remains(agent_id) == []


@pytest.mark.needs("root")
async def test_a_state_directory_that_the_user_cannot_reach_says_what_to_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    backend = BareMetalBackend("h", tmp_path / "state", "i")

    with pytest.raises(PermanentSpawnError, match=r"let others pass through .* \(chmod o\+x\)"):
        await backend.spawn(shell(fresh_agent_id(), "pwd"), silent)

    await backend.close()


def test_a_state_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(HatchwayError, match="state directory that this worker can write"):
        BareMetalBackend("h", tmp_path / "file" / "state", "i")


async def test_the_reference_agent_runs_where_no_command_is_given(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    await harness.backend.spawn(bare_metal_spec(agent_id, None, environment_for(agent_id)), silent)

    ended = await exit_of(harness.backend, agent_id)

    assert ended.exit_code == 64
    assert "KICI_ORCHESTRATOR_URL is not set" in ended.log_tail


@pytest.mark.needs("root")
async def test_a_python_that_only_the_worker_can_run_is_not_given_to_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "python"
    private.symlink_to("/usr/bin/python3")
    private.parent.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(private))
    bare_metal_order._python_for.cache_clear()
    nobody = pwd.getpwnam("nobody")
    account = bare_metal_order.Account("nobody", nobody.pw_uid, nobody.pw_gid, (nobody.pw_gid,))

    as_worker, as_nobody = bare_metal_order._python_for(None), bare_metal_order._python_for(account)

    bare_metal_order._python_for.cache_clear()
    assert as_worker == str(private)
    assert as_nobody == "/usr/bin/python3"


async def test_output_is_capped_private_and_whole_at_its_end(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    await harness.backend.spawn(shell(agent_id, "yes 0123456789 | head -c 30000000; echo; echo last"), silent)

    ended = await exit_of(harness.backend, agent_id)

    logs = [harness.state_dir / agent_id / name for name in ("log", "log.1")]
    assert sum(path.stat().st_size for path in logs) <= 10 * 1024 * 1024
    assert {stat.S_IMODE(path.stat().st_mode) for path in logs} == {0o600}
    assert ended.log_tail.endswith("\nlast")
    assert await harness.backend.logs(agent_id, lines=1) == "last"


@pytest.mark.parametrize("agent_id", ["../escape", "a/b", "", ".", ".hidden"])
async def test_an_agent_id_cannot_leave_the_state_directory(harness: BareMetalHarness, agent_id: str) -> None:
    with pytest.raises(PermanentSpawnError, match="cannot name an agent") as raised:
        await harness.backend.spawn(shell(agent_id, "exit 0"), silent)

    assert raised.value.code is SpawnCode.INVALID_SPEC
    assert await harness.backend.find(agent_id) is None
    assert await harness.backend.logs(agent_id) == ""
    await destroy(harness.backend, agent_id)
    assert list(harness.state_dir.iterdir()) == []


def fails(number: int) -> Callable[..., None]:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("target", "name", "number", "code"),
    [
        (Records, "prepare", errno.ENOSPC, SpawnCode.DISK_FULL),
        (Records, "write_intent", errno.ENOSPC, SpawnCode.DISK_FULL),
        (subprocess, "Popen", errno.EAGAIN, SpawnCode.CAPACITY),
        (subprocess, "Popen", errno.ENOMEM, SpawnCode.CAPACITY),
    ],
)
async def test_a_host_that_is_full_may_be_tried_again_and_nothing_stays(
    harness: BareMetalHarness, monkeypatch: pytest.MonkeyPatch, target: object, name: str, number: int, code: SpawnCode
) -> None:
    agent_id = fresh_agent_id()
    with monkeypatch.context() as patched:
        patched.setattr(target, name, fails(number))

        with pytest.raises(TransientSpawnError) as raised:
            await harness.backend.spawn(shell(agent_id, "exec sleep 3600"), silent)

    assert raised.value.code is code
    assert await harness.remains(agent_id) == []
    await harness.backend.spawn(shell(agent_id, "exec sleep 3600"), silent)
    assert await harness.live(agent_id) == 1


async def test_a_damaged_record_holds_up_no_other_agent(harness: BareMetalHarness) -> None:
    damaged, healthy = fresh_agent_id(), fresh_agent_id()
    for agent_id in (damaged, healthy):
        await harness.backend.spawn(shell(agent_id, "exit 3"), silent)
        await exit_of(harness.backend, agent_id)
    path = harness.state_dir / damaged / "intent.json"
    whole = path.read_text()
    path.write_text("{")

    told = await exit_of(harness.backend, healthy)
    owned = [compute.agent_id async for compute in harness.backend.owned()]
    with pytest.raises(DestroyError, match=str(path)):
        await harness.backend.destroy(damaged, facts_for(harness.backend), ScaleDownReason.SHUTDOWN)

    assert told.exit_code == 3
    assert owned == [healthy]
    path.write_text(whole)


@pytest.mark.scenario("S03")
async def test_many_spawns_with_lost_replies_leave_one_process_each(harness: BareMetalHarness) -> None:
    agent_ids = [fresh_agent_id() for _ in range(40)]
    workers = [harness.backend, await harness.another()]

    async def twice(number: int, agent_id: str) -> None:
        for attempt in range(2):
            await workers[(number + attempt) % 2].spawn(shell(agent_id, "exec sleep 3600"), silent)

    await asyncio.gather(*(twice(number, agent_id) for number, agent_id in enumerate(agent_ids)))

    live = [await harness.live(agent_id) for agent_id in agent_ids]
    assert live == [1] * len(agent_ids)
    await asyncio.gather(*(destroy(workers[0], agent_id) for agent_id in agent_ids))
    assert list(harness.state_dir.iterdir()) == []


async def test_a_supervisor_whose_worker_died_before_the_order_starts_nothing(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    await harness.crash_during_spawn(shell(agent_id, "exec sleep 3600"), "shim forked")
    await live_becomes(harness, agent_id, 0)

    async with asyncio.timeout(60):
        while list(shims_of(agent_id)):
            await asyncio.sleep(0.01)

    assert await harness.backend.find(agent_id) is None


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04])
async def test_a_supervisor_killed_during_the_start_leaves_an_error_or_an_end_and_never_an_orphan(
    harness: BareMetalHarness, delay: float
) -> None:
    agent_id = fresh_agent_id()
    spawning = asyncio.ensure_future(harness.backend.spawn(shell(agent_id, "exec sleep 3600"), silent))
    while not (shims := list(shims_of(agent_id))) and not spawning.done():
        await asyncio.sleep(0)
    await asyncio.sleep(delay)

    for shim in {*shims, *shims_of(agent_id)}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(shim, signal.SIGKILL)
    (outcome,) = await asyncio.gather(spawning, return_exceptions=True)

    if isinstance(outcome, BaseException):
        assert isinstance(outcome, TransientSpawnError)
    else:
        if not list(shims_of(agent_id)):  # only the process that had already handed over to it may have been hit
            assert (await exit_of(harness.backend, agent_id)).exit_code is None
        await destroy(harness.backend, agent_id)
    assert await harness.remains(agent_id) == []


@pytest.mark.scenario("S06")
async def test_spawns_at_the_same_moment_of_a_program_that_cannot_run_all_fail(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    spec = harness.spec(agent_id, Behaviour.UNSTARTABLE, environment_for(agent_id))
    workers = [harness.backend, await harness.another()]

    outcomes = await asyncio.gather(
        *(worker.spawn(spec, silent) for worker in workers for _ in range(8)), return_exceptions=True
    )

    assert {type(outcome) for outcome in outcomes} == {PermanentSpawnError}
    assert await harness.remains(agent_id) == []


async def test_spawns_and_teardowns_at_the_same_moment_end_in_one_agent_or_none(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    spec = shell(agent_id, "exec sleep 3600")
    workers = [harness.backend, await harness.another()]

    for _ in range(10):
        await asyncio.gather(
            *(worker.spawn(spec, silent) for worker in workers for _ in range(2)),
            *(destroy(worker, agent_id) for worker in workers),
        )
        found, live = await harness.backend.find(agent_id), await harness.live(agent_id)
        assert live == (0 if found is None else 1)

    await destroy(harness.backend, agent_id)
    assert await harness.remains(agent_id) == []
