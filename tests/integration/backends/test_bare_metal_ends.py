"""The end of host processes: every descendant, signals and exit codes, a lost supervisor, a recycled pid, a reboot."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time

import pytest

from hatchway.host.identity import boot_id, process_stat
from tests.contract.backend import (
    destroy,
    exit_of,
    fresh_agent_id,
    silent,
)
from tests.contract.bare_metal import BareMetalHarness, processes_of, shims_of
from tests.integration.backends.scripts import printed, shell

DAEMON = "setsid sh -c 'setsid sleep 3600 & sleep 3600' & sleep 3600 & echo up; "


@pytest.mark.parametrize("end", ["exec sleep 3600", "trap '' TERM; while :; do sleep 1; done"])
async def test_destroy_reaches_every_descendant(harness: BareMetalHarness, end: str) -> None:
    agent_id = fresh_agent_id()
    await harness.backend.spawn(shell(agent_id, DAEMON + end, grace=0.2), silent)
    await printed(harness, agent_id, "up")

    await destroy(harness.backend, agent_id)

    assert await harness.remains(agent_id) == []


async def test_what_an_agent_leaves_running_ends_with_it(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    await harness.backend.spawn(shell(agent_id, DAEMON + "exit 5"), silent)

    ended = await exit_of(harness.backend, agent_id)

    assert ended.exit_code == 5
    assert list(processes_of(agent_id)) == []


async def test_sigterm_lets_the_agent_finish_within_its_grace(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    directory = harness.state_dir.parent / "finished"
    directory.mkdir()
    directory.chmod(0o777)
    script = f"trap 'touch {directory}/yes; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    await harness.backend.spawn(shell(agent_id, script, grace=20), silent)
    await printed(harness, agent_id, "up")
    begun = time.monotonic()

    await destroy(harness.backend, agent_id)

    assert (directory / "yes").exists()
    assert time.monotonic() - begun < 10, "it waited for the whole grace"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 137), (signal.SIGSEGV, 139)])
async def test_a_signal_is_an_exit_code_as_a_shell_says_it(
    harness: BareMetalHarness, number: signal.Signals, code: int
) -> None:
    agent_id = fresh_agent_id()
    ref = await harness.backend.spawn(shell(agent_id, "exec sleep 3600"), silent)

    os.kill(int(ref.ref), number)

    assert (await exit_of(harness.backend, agent_id)).exit_code == code


async def test_a_killed_supervisor_takes_its_agent_along_and_the_end_is_told(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    ref = await harness.backend.spawn(shell(agent_id, DAEMON + "exec sleep 3600"), silent)
    await printed(harness, agent_id, "up")
    (shim,) = shims_of(agent_id)

    os.kill(shim, signal.SIGKILL)

    ended = await exit_of(harness.backend, agent_id)
    assert ended.exit_code is None
    assert ended.log_tail == "up"
    async with asyncio.timeout(60):
        while process_stat(int(ref.ref)) is not None:
            await asyncio.sleep(0.01)
    assert list(processes_of(agent_id)), "the daemons are what this test is about"
    await destroy(await harness.another(), agent_id)
    assert await harness.remains(agent_id) == []


async def test_a_supervisor_that_does_not_react_is_bypassed(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    await harness.backend.spawn(shell(agent_id, DAEMON + "exec sleep 3600", grace=0.1), silent)
    await printed(harness, agent_id, "up")
    (shim,) = shims_of(agent_id)
    os.kill(shim, signal.SIGSTOP)

    await destroy(harness.backend, agent_id)

    assert await harness.remains(agent_id) == []


def rewrite(harness: BareMetalHarness, agent_id: str, **fields: int | str) -> None:
    path = harness.state_dir / agent_id / "started.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("what", ["pid with another start time", "the same process of another boot"])
async def test_a_recycled_pid_is_never_killed(harness: BareMetalHarness, what: str) -> None:
    agent_id = fresh_agent_id()
    await harness.backend.spawn(shell(agent_id, "exit 0"), silent)
    await exit_of(harness.backend, agent_id)
    with subprocess.Popen(["sleep", "3600"]) as stranger:
        stat_of = process_stat(stranger.pid)
        assert stat_of is not None
        same = what.startswith("the same")
        start_time = stat_of.start_time if same else stat_of.start_time - 1
        rewrite(
            harness,
            agent_id,
            pid=stranger.pid,
            start_time=start_time,
            shim_pid=stranger.pid,
            shim_start_time=start_time,
            boot_id="another boot" if same else boot_id(),
        )
        (harness.state_dir / agent_id / "ended.json").unlink()  # as if the shim had been killed

        ended = await exit_of(harness.backend, agent_id)
        await destroy(harness.backend, agent_id)

        assert stranger.poll() is None
        assert ended.exit_code is None
        assert await harness.remains(agent_id) == []
        stranger.kill()


@pytest.mark.scenario("S14")
async def test_after_a_reboot_the_agent_is_gone_is_told_and_is_not_started_again(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    first = await harness.backend.spawn(shell(agent_id, "exit 0"), silent)
    await exit_of(harness.backend, agent_id)
    rewrite(harness, agent_id, boot_id="the boot before")
    (harness.state_dir / agent_id / "ended.json").unlink()
    worker = await harness.another()

    found, again = await worker.find(agent_id), await worker.spawn(shell(agent_id, "exec sleep 3600"), silent)

    assert found is None
    assert again == first
    assert await harness.live(agent_id) == 0
    assert (await exit_of(worker, agent_id)).exit_code is None
