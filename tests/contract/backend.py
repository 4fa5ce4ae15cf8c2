"""The contract of a backend, as tests. Every backend passes all of them, against its real engine.

To plug one in, a test module provides two fixtures and one class:

    @pytest.fixture
    async def harness() -> AsyncIterator[BackendHarness]: ...     # destroys what a test has left, and closes

    @pytest.fixture(params=["created, reply lost", ...])
    def crash_point(request) -> str: ...      # every point between two effects at which a worker can be killed

    class TestContainerContract(BackendContract): ...
"""

from __future__ import annotations

import asyncio
import base64
import time

import pytest

from hatchway.errors import DestroyError, PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.model import ScaleDownReason
from tests.contract.harness import (
    CLAIM,
    CUT_AFTER,
    EXIT_CODE,
    LATE,
    PATIENCE,
    BackendHarness,
    Behaviour,
    destroy,
    environment_for,
    exit_of,
    facts_for,
    fresh_agent_id,
    live_becomes,
    owned_ids,
    silent,
    spec_for,
)

__all__ = [
    "CLAIM",
    "CUT_AFTER",
    "EXIT_CODE",
    "LATE",
    "PATIENCE",
    "AnyBackendContract",
    "BackendContract",
    "BackendHarness",
    "Behaviour",
    "destroy",
    "environment_for",
    "exit_of",
    "facts_for",
    "fresh_agent_id",
    "live_becomes",
    "owned_ids",
    "silent",
    "spec_for",
]


class AnyBackendContract:
    """What holds wherever the compute is, also where Hatchway can neither see it nor set its environment.

    Subclass it as `Test…` beside the fixtures `harness` and `crash_point`.
    """

    async def test_spawn_answers_where_the_one_running_agent_is(self, harness: BackendHarness) -> None:
        agent_id = fresh_agent_id()
        said: list[str] = []

        def hear(message: str) -> None:
            said.append(message)

        ref = await harness.backend.spawn(spec_for(harness, agent_id), hear)

        assert ref.host_id == harness.backend.host_id
        assert await harness.live(agent_id) == 1
        assert await harness.backend.find(agent_id) == ref
        assert said
        assert CLAIM not in "".join(said)

    @pytest.mark.scenario("S02")
    async def test_a_second_spawn_finds_the_first_ones_agent(self, harness: BackendHarness) -> None:
        agent_id = fresh_agent_id()
        first = await harness.backend.spawn(spec_for(harness, agent_id), silent)

        again = await harness.backend.spawn(spec_for(harness, agent_id), silent)
        elsewhere = await (await harness.another()).spawn(spec_for(harness, agent_id), silent)

        assert first == again == elsewhere
        assert await harness.live(agent_id) == 1

    @pytest.mark.scenario("S02")
    async def test_spawns_at_the_same_moment_make_one_agent(self, harness: BackendHarness) -> None:
        agent_id = fresh_agent_id()
        workers = [harness.backend, await harness.another()]

        refs = await asyncio.gather(
            *(worker.spawn(spec_for(harness, agent_id), silent) for worker in workers for _ in range(3))
        )

        assert len(set(refs)) == 1
        assert await harness.live(agent_id) == 1

    @pytest.mark.scenario("S01", "S02", "S14")
    async def test_a_worker_killed_during_spawn_leaves_one_agent_for_the_next_attempt(
        self, harness: BackendHarness, crash_point: str
    ) -> None:
        agent_id = fresh_agent_id()
        await harness.crash_during_spawn(spec_for(harness, agent_id), crash_point)

        worker = await harness.another()
        ref = await worker.spawn(spec_for(harness, agent_id), silent)

        assert await worker.find(agent_id) == ref
        assert await harness.live(agent_id) == 1
        await destroy(worker, agent_id)
        assert await harness.remains(agent_id) == []

    @pytest.mark.scenario("S01", "S14")
    async def test_a_worker_killed_during_spawn_leaves_nothing_that_a_teardown_does_not_find(
        self, harness: BackendHarness, crash_point: str
    ) -> None:
        agent_id = fresh_agent_id()
        await harness.crash_during_spawn(spec_for(harness, agent_id), crash_point)

        await destroy(await harness.another(), agent_id)

        assert await harness.live(agent_id) == 0
        assert await harness.remains(agent_id) == []

    async def test_destroy_ends_this_agent_and_no_other(self, harness: BackendHarness) -> None:
        condemned, bystander = fresh_agent_id(), fresh_agent_id()
        for agent_id in (condemned, bystander):
            await harness.backend.spawn(spec_for(harness, agent_id), silent)

        await destroy(harness.backend, condemned)

        assert await harness.remains(condemned) == []
        assert await harness.backend.find(condemned) is None
        assert await harness.live(bystander) == 1

    async def test_another_worker_destroys_by_agent_id_alone(self, harness: BackendHarness) -> None:
        agent_id = fresh_agent_id()
        await harness.backend.spawn(spec_for(harness, agent_id), silent)

        await destroy(await harness.another(), agent_id)

        assert await harness.remains(agent_id) == []

    async def test_teardowns_at_the_same_moment_all_confirm(self, harness: BackendHarness) -> None:
        agent_id = fresh_agent_id()
        await harness.backend.spawn(spec_for(harness, agent_id), silent)
        other = await harness.another()

        await asyncio.gather(*(destroy(worker, agent_id) for worker in (harness.backend, other, harness.backend)))

        assert await harness.remains(agent_id) == []

    @pytest.mark.scenario("S18")
    @pytest.mark.parametrize("after", CUT_AFTER)
    async def test_a_cancelled_spawn_leaves_nothing_that_its_teardown_does_not_find(
        self, harness: BackendHarness, after: float
    ) -> None:
        """Nor anything that would come up after it: whoever cancels waits for the end, and tears down next."""
        agent_id = fresh_agent_id()
        spawning = asyncio.ensure_future(harness.backend.spawn(spec_for(harness, agent_id), silent))
        await asyncio.wait([spawning], timeout=after)

        spawning.cancel()
        await asyncio.wait([spawning], timeout=PATIENCE)
        assert spawning.done()
        await destroy(harness.backend, agent_id)

        assert await harness.live(agent_id) == 0
        assert await harness.remains(agent_id) == []
        await asyncio.sleep(LATE)
        assert await harness.remains(agent_id) == []

    @pytest.mark.scenario("S18")
    @pytest.mark.parametrize("after", CUT_AFTER)
    async def test_a_cancelled_spawn_ends_no_agent_that_another_attempt_has(
        self, harness: BackendHarness, after: float
    ) -> None:
        """It was handed back, or given up for silent: the agent of the next attempt may be at work already."""
        agent_id, other = fresh_agent_id(), await harness.another()
        cut = asyncio.ensure_future(harness.backend.spawn(spec_for(harness, agent_id), silent))
        await asyncio.wait([cut], timeout=after)

        cut.cancel()
        ref = await other.spawn(spec_for(harness, agent_id), silent)
        await asyncio.wait([cut], timeout=PATIENCE)

        assert cut.done()
        assert await harness.backend.find(agent_id) == ref
        assert await harness.live(agent_id) == 1

    @pytest.mark.scenario("S05")
    async def test_a_teardown_during_an_outage_is_not_confirmed_and_works_after_it(
        self, harness: BackendHarness
    ) -> None:
        agent_id = fresh_agent_id()
        await harness.backend.spawn(spec_for(harness, agent_id), silent)

        async with harness.outage():
            with pytest.raises(DestroyError):
                await harness.backend.destroy(agent_id, facts_for(harness.backend), ScaleDownReason.SHUTDOWN)
        assert await harness.live(agent_id) == 1

        await destroy(harness.backend, agent_id)
        assert await harness.remains(agent_id) == []

    @pytest.mark.scenario("S07")
    async def test_a_spawn_during_an_outage_may_be_tried_again(self, harness: BackendHarness) -> None:
        agent_id = fresh_agent_id()

        async with harness.outage():
            with pytest.raises(TransientSpawnError):
                await harness.backend.spawn(spec_for(harness, agent_id), silent)

        await harness.backend.spawn(spec_for(harness, agent_id), silent)
        assert await harness.live(agent_id) == 1


class BackendContract(AnyBackendContract):
    """And what holds where the engine itself can be asked. Subclass it in the same way."""

    @pytest.mark.scenario("S04")
    async def test_what_is_not_there_is_gone(self, harness: BackendHarness) -> None:
        agent_id = fresh_agent_id()
        await destroy(harness.backend, agent_id)
        await harness.backend.spawn(spec_for(harness, agent_id), silent)

        await destroy(harness.backend, agent_id)
        await destroy(harness.backend, agent_id)

        assert await harness.remains(agent_id) == []

    async def test_an_agent_that_ignores_sigterm_is_killed_after_its_grace(self, harness: BackendHarness) -> None:
        agent_id = fresh_agent_id()
        await harness.backend.spawn(spec_for(harness, agent_id, Behaviour.IGNORES_TERM), silent)
        async with asyncio.timeout(PATIENCE):
            while "ready" not in await harness.backend.logs(agent_id):
                await asyncio.sleep(0.02)
        begun = time.monotonic()

        await destroy(harness.backend, agent_id)

        assert time.monotonic() - begun >= 0.9, "it got no grace"
        assert await harness.remains(agent_id) == []

    @pytest.mark.scenario("S06", "S15")
    async def test_an_agent_that_cannot_be_started_fails_at_once_and_leaves_nothing(
        self, harness: BackendHarness
    ) -> None:
        agent_id = fresh_agent_id()
        begun = time.monotonic()

        with pytest.raises(PermanentSpawnError) as raised:
            await harness.backend.spawn(spec_for(harness, agent_id, Behaviour.UNSTARTABLE), silent)

        assert raised.value.code is SpawnCode.COMMAND_NOT_FOUND
        assert CLAIM not in str(raised.value)
        assert time.monotonic() - begun < 10
        assert await harness.remains(agent_id) == []

    async def test_an_exit_is_told_with_its_code_and_a_redacted_tail(self, harness: BackendHarness) -> None:
        agent_id = fresh_agent_id()
        await harness.backend.spawn(spec_for(harness, agent_id, Behaviour.EXITS), silent)

        ended = await exit_of(harness.backend, agent_id)

        assert ended.exit_code == EXIT_CODE
        assert ended.log_tail.endswith("the last line")
        assert CLAIM not in ended.log_tail
        assert base64.b64encode(f"x:{CLAIM}".encode()).decode()[4:-4] not in ended.log_tail

    async def test_an_exit_that_nobody_watched_is_told_until_the_teardown(self, harness: BackendHarness) -> None:
        agent_id = fresh_agent_id()
        await harness.backend.spawn(spec_for(harness, agent_id, Behaviour.EXITS), silent)
        await live_becomes(harness, agent_id, 0)

        first = await exit_of(await harness.another(), agent_id)
        second = await exit_of(await harness.another(), agent_id)

        assert first == second
        assert first.exit_code == EXIT_CODE
        assert CLAIM not in first.log_tail
        await destroy(harness.backend, agent_id)
        assert await harness.remains(agent_id) == []

    async def test_one_watch_tells_an_exit_once(self, harness: BackendHarness) -> None:
        ended_id, later_id = fresh_agent_id(), fresh_agent_id()
        seen: list[str] = []
        await harness.backend.spawn(spec_for(harness, ended_id, Behaviour.EXITS), silent)

        async with asyncio.timeout(PATIENCE):
            async for ended in harness.backend.exits():
                seen.append(ended.agent_id)
                if ended.agent_id == later_id:
                    break
                await harness.backend.spawn(spec_for(harness, later_id, Behaviour.EXITS), silent)

        assert seen == [ended_id, later_id]

    async def test_an_agent_killed_from_outside_is_told(self, harness: BackendHarness) -> None:
        agent_id = fresh_agent_id()
        await harness.backend.spawn(spec_for(harness, agent_id), silent)

        await harness.kill_from_outside(agent_id)
        ended = await exit_of(harness.backend, agent_id)

        assert ended.exit_code in (137, None)
        await destroy(harness.backend, agent_id)
        assert await harness.remains(agent_id) == []

    async def test_a_spawn_after_the_agents_end_starts_no_second_one(self, harness: BackendHarness) -> None:
        agent_id = fresh_agent_id()
        first = await harness.backend.spawn(spec_for(harness, agent_id, Behaviour.EXITS), silent)
        await exit_of(harness.backend, agent_id)

        again = await harness.backend.spawn(spec_for(harness, agent_id), silent)

        assert again == first
        assert await harness.live(agent_id) == 0
        assert (await exit_of(harness.backend, agent_id)).exit_code == EXIT_CODE

    async def test_another_installations_agents_are_not_seen_and_not_touched(self, harness: BackendHarness) -> None:
        ours, stranger = harness.backend, await harness.another("installation-of-somebody-else")
        agent_id = fresh_agent_id()
        await ours.spawn(spec_for(harness, agent_id), silent)

        found, owned = await stranger.find(agent_id), await owned_ids(stranger)
        await destroy(stranger, agent_id)

        assert found is None
        assert agent_id not in owned
        assert await harness.live(agent_id) == 1

    async def test_owned_lists_what_was_spawned_until_it_is_destroyed(self, harness: BackendHarness) -> None:
        running, ended = fresh_agent_id(), fresh_agent_id()
        await harness.backend.spawn(spec_for(harness, running), silent)
        await harness.backend.spawn(spec_for(harness, ended, Behaviour.EXITS), silent)
        await live_becomes(harness, ended, 0)

        before = await owned_ids(await harness.another())
        await destroy(harness.backend, ended)

        assert {running, ended} <= before
        after = [owned async for owned in harness.backend.owned() if owned.agent_id in (running, ended)]
        assert [owned.agent_id for owned in after] == [running]
        assert after[0].created_at is not None
        assert after[0].created_at.tzinfo is not None

    async def test_the_agents_environment_is_its_spec_and_nothing_of_the_worker(
        self, harness: BackendHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WORKERS_OWN", "1")
        agent_id = fresh_agent_id()
        await harness.backend.spawn(spec_for(harness, agent_id), silent)

        environment = await harness.environment(agent_id)

        wanted = environment_for(agent_id)
        assert {name: environment.get(name) for name in wanted} == wanted
        assert set(environment) - set(wanted) <= harness.base_environment

    @pytest.mark.scenario("S41")
    @pytest.mark.parametrize("behaviour", [Behaviour.RUNS, Behaviour.EXITS])
    async def test_the_claim_is_exposed_to_nobody_else(self, harness: BackendHarness, behaviour: Behaviour) -> None:
        agent_id = fresh_agent_id()
        await harness.backend.spawn(spec_for(harness, agent_id, behaviour), silent)
        if behaviour is Behaviour.EXITS:
            await live_becomes(harness, agent_id, 0)

        exposed = await harness.exposed(agent_id)

        assert agent_id in exposed, "looked in the wrong place"
        assert CLAIM not in exposed

    async def test_logs_show_the_last_lines_without_the_secrets(self, harness: BackendHarness) -> None:
        agent_id = fresh_agent_id()
        await harness.backend.spawn(spec_for(harness, agent_id, Behaviour.EXITS), silent)
        await live_becomes(harness, agent_id, 0)

        async with asyncio.timeout(20):  # what it printed may arrive a moment after it has ended
            while await harness.backend.logs(agent_id, lines=1) != "the last line":
                await asyncio.sleep(0.02)
        whole = await harness.backend.logs(agent_id)

        assert whole.endswith("the last line")
        assert CLAIM not in whole
        assert await harness.backend.logs(fresh_agent_id()) == ""
