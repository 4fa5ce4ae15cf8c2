"""The page of a pass, what it reads of the pass before, and how an agent's workflow is asked for."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.models import LookInput
from activities.reclaim import LOOKED_AT_A_PASS, ReclaimActivities, chosen
from hatchway.backends.base import OwnedCompute
from hatchway.liveness import AGENT_ID, _query
from hatchway.model import ComputeRef, ReclaimOutcome, Sighting
from hatchway.schedules import SWEEP, reclaim_of
from workflows.page import LIMIT, render_reclaim
from workflows.reclaim import _sighted_before

NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)


def _sighting(agent_id: str) -> Sighting:
    return Sighting(agent_id=agent_id, backend="container", since=NOW)


def test_a_page_names_some_counts_all_and_stays_within_its_limit() -> None:
    agents = [f"scaler-{uuid.uuid4().hex}" for _ in range(200)]
    outcome = ReclaimOutcome(
        seen=1000, sighted=[_sighting(agent_id) for agent_id in agents], more=800, reclaimed=agents[:100],
        restored=agents[:7], failed=dict.fromkeys(agents, "it hangs " * 30),
    )  # fmt: skip

    page = render_reclaim("looked, with failures", "host-1", outcome, NOW)

    assert len(page.encode()) <= LIMIT
    assert "- **nobody answers for** 200: " in page
    assert "- **destroyed** 100: " in page
    assert "- **row written again** 7: " in page
    assert "- **left for a later pass** 800" in page
    assert "What you can do" in page


def test_a_page_of_a_quiet_pass_says_little() -> None:
    page = render_reclaim("looked", "host-1", ReclaimOutcome(seen=3), NOW)

    assert page.splitlines()[0] == "### looked"
    assert "- **ours** 3" in page
    assert "destroyed" not in page.partition("**What you can do:**")[0]


def test_the_sightings_of_the_pass_before_are_read_back() -> None:
    before = [_sighting("scaler-1"), _sighting("scaler-2")]
    result = ReclaimOutcome(sighted=before).model_dump(mode="json")

    assert _sighted_before(result) == before


@pytest.mark.parametrize("result", [None, 7, "text", {}, {"sighted": []}])
def test_where_no_pass_came_before_nothing_has_been_seen(result: Any) -> None:
    assert _sighted_before(result) == []


@pytest.mark.parametrize("sighting", [{"agent_id": "scaler-1"}, {"of": "another release"}, "scaler-1"])
def test_sightings_that_cannot_be_read_are_told_from_none(sighting: Any) -> None:
    assert _sighted_before({"sighted": [sighting]}) is None


def test_an_agents_workflow_is_asked_for_by_its_first_run_and_by_its_name() -> None:
    run = uuid.uuid4()

    query = _query(f"scaler-{run.hex}")

    assert f'RunId = "{run}"' in query
    assert f'HatchwayAgentId = "scaler-{run.hex}"' in query


def test_an_agent_id_that_no_run_made_is_asked_for_by_name_alone() -> None:
    assert "RunId" not in _query("scaler-of-another-kind")


@pytest.mark.parametrize("text", ["", '" OR RunId != "', "a b", "x" * 201, "scaler-\n"])
def test_what_cannot_be_an_agent_id_reaches_no_query(text: str) -> None:
    assert AGENT_ID.fullmatch(text) is None
    with pytest.raises(ValueError, match="not an agent id"):
        _query(text)


def test_schedules_name_what_they_run() -> None:
    scheduled = reclaim_of("docker-abc")

    assert (scheduled.id, scheduled.workflow_id) == ("hatchway/reclaim/docker-abc", "reclaim/docker-abc")
    assert SWEEP.workflow_id == "sweep"


def test_a_pass_leaves_room_for_what_is_new_beside_what_cannot_be_destroyed() -> None:
    owned = {f"a{n}": _owned(f"a{n}") for n in range(1000)}
    before = {("container", f"a{n}") for n in range(600)}
    rowless = [("container", one) for one in owned.values()]

    looked_at = [chosen(rowless, before) for _ in range(50)]

    for pass_ in looked_at:
        known = sum((kind, one.agent_id) in before for kind, one in pass_)
        assert (len(pass_), known) == (LOOKED_AT_A_PASS, LOOKED_AT_A_PASS // 2)
    assert {one.agent_id for pass_ in looked_at for _, one in pass_} == owned.keys(), "everybody has a turn"


async def test_every_row_without_an_adoption_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most stay as they are: a start that takes long. In the order of the list, they would keep the others out."""
    rows = {f"scaler-{n:032x}": ("provision/adhoc/x", "run") for n in range(LOOKED_AT_A_PASS + 100)}
    asked: list[list[str]] = []

    async def asks(_self: ReclaimActivities, agent_id: str, *_: object) -> None:
        asked[-1].append(agent_id)

    async def here(_self: ReclaimActivities) -> None:
        """The database is tied to this namespace."""

    monkeypatch.setattr(ReclaimActivities, "_remembered", asks)
    monkeypatch.setattr(ReclaimActivities, "_stand_down_elsewhere", here)
    host: Any = SimpleNamespace(owned=lambda: _listed(*rows))
    store: Any = SimpleNamespace(rowless=_answers(set()), unadopted=_answers(rows))
    nobody: Any = None
    reclaiming = ReclaimActivities("host-1", {"container": host}, "i", store, nobody, nobody, nobody, nobody)

    for _ in range(30):
        asked.append([])
        await ActivityEnvironment().run(reclaiming.look, LookInput(before=[], now=datetime.now(UTC)))

    assert {len(of_a_pass) for of_a_pass in asked} == {LOOKED_AT_A_PASS}
    assert {agent_id for of_a_pass in asked for agent_id in of_a_pass} == rows.keys()


async def _listed(*agent_ids: str) -> AsyncIterator[OwnedCompute]:
    for agent_id in agent_ids:
        yield _owned(agent_id)


def _answers(answer: Any) -> Callable[..., Awaitable[Any]]:
    async def answers(agent_ids: list[str], *_: object) -> Any:
        return {one: answer[one] for one in agent_ids} if isinstance(answer, dict) else answer

    return answers


def test_a_pass_that_finds_little_looks_at_all_of_it() -> None:
    rowless = [("container", _owned(f"a{n}")) for n in range(120)]

    assert len(chosen(rowless, {("container", f"a{n}") for n in range(110)})) == 120


def _owned(agent_id: str) -> OwnedCompute:
    return OwnedCompute(agent_id, ComputeRef(backend="container", ref=agent_id, host_id="host-1"))


def test_without_chance_some_would_never_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above is worth: in the order of the list, those that cannot be destroyed keep the others out."""
    monkeypatch.setattr("activities.reclaim.random.shuffle", lambda _: None)
    rowless = [("container", _owned(f"a{n}")) for n in range(1000)]
    before = {("container", f"a{n}") for n in range(600)}

    looked_at = {one.agent_id for _ in range(50) for _, one in chosen(rowless, before)}

    assert len(looked_at) == LOOKED_AT_A_PASS
