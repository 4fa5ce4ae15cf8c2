"""What a pool lacks and has too much of, and which jobs its agents serve."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatchway.config.schema import Scaler
from hatchway.model import EndReason, ProvisionRequest
from hatchway.resources import Shape
from hatchway.warming import Plan, Pool, Scope, WarmAgent, deficit, head_room, key, plan, serves

MINUTE = timedelta(minutes=1)
SHAPE = {"cpus": 2, "memory": "2Gi"}


def scaler(label_set: dict[str, Any] | None = None, **keys: Any) -> Scaler:
    return Scaler.model_validate({
        "name": "s", "type": "container", "maxAgents": 5, "networkIsolation": False, "warmPool": {"size": 1},
        "labelSets": [{"labels": ["linux"], "image": "app", "resources": SHAPE, **(label_set or {})}], **keys,
    })  # fmt: skip


def job(**keys: Any) -> ProvisionRequest:
    return ProvisionRequest.model_validate({"labels": ["linux"], "job_id": "job-1", **keys})


def fits(request: ProvisionRequest, of: Scaler) -> bool:
    return serves(of, of.label_sets[0], request, None)


@pytest.mark.parametrize(
    ("request_", "of", "answer"),
    [
        (job(), scaler(), True),
        (ProvisionRequest(labels=["linux"]), scaler(), False),
        (job(), scaler(warmPool=None), False),
        (job(container="other"), scaler(), True),
        (job(container="other"), scaler(allowJobImage=True), False),
        (job(container="docker.io/library/app:latest"), scaler(allowJobImage=True), True),
        (job(container="app:2"), scaler(allowJobImage=True), False),
        (job(container={"dockerfile": "Dockerfile"}), scaler(allowJobImage=True), True),
        (job(container={"image": "app", "env": {"A": "1"}}), scaler(), False),
        (job(container={"image": "app", "auth": {"tokenSecret": "a:b"}}), scaler(), False),
        (job(resources=SHAPE), scaler(), True),
        (job(resources={"requests": {"cpus": 1}, "limits": {"cpus": 2}}), scaler(), True),
        (job(resources={"cpus": 1}), scaler(), False),
        (job(resources={"memory": "4Gi"}), scaler(), False),
        (job(resources={"requests": {"cpus": 2}, "limits": {"cpus": 4}}), scaler(), False),
    ],
    ids=[
        "plain", "no job", "no pool", "an ignored image", "another image", "the same image, spelled out",
        "another tag", "a dockerfile", "an environment", "credentials", "the same shape", "less under the same limits",
        "smaller limits", "more memory", "a larger limit",
    ],
)  # fmt: skip
def test_a_warm_agent_serves_a_job_only_if_none_would_be_made_otherwise(
    request_: ProvisionRequest, of: Scaler, answer: bool
) -> None:
    assert fits(request_, of) is answer


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        (scaler(maxAgents=9), True),
        (scaler(warmPool={"size": 4}), True),
        (scaler({"image": "app:2"}), False),
        (scaler({"env": {"A": "1"}}), False),
        (scaler({"resources": {"cpus": 4, "memory": "2Gi"}}), False),
        (scaler(roles=["builder"]), False),
        (scaler(orchestratorUrl="http://elsewhere"), False),
    ],
    ids=["its cap", "its pool", "image", "environment", "shape", "roles", "gateway"],
)
def test_an_agent_is_outdated_when_it_would_be_made_otherwise_now(changed: Scaler, same: bool) -> None:
    before = scaler()

    assert (key(changed, changed.label_sets[0], None) == key(before, before.label_sets[0], None)) is same


amounts = st.integers(0, 20)
caps = st.none() | amounts
scopes = st.lists(st.builds(Scope, caps, amounts, caps, amounts, caps, amounts), max_size=3)
shapes = st.builds(Shape, mcpu=amounts, mem_bytes=amounts)
agents = st.lists(
    st.tuples(
        st.sampled_from(["now", "before"]),
        st.none() | st.integers(0, 60),
        st.none() | st.integers(0, 60),
    ),
    max_size=8,
).map(
    lambda rows: [
        WarmAgent(
            f"a{n}", made,
            None if idle is None else idle * MINUTE,
            None if leaving is None else timedelta(seconds=leaving),
        )
        for n, (made, idle, leaving) in enumerate(rows)
    ]
)  # fmt: skip
pools = st.builds(
    Pool, target=st.integers(0, 8), idle_timeout=st.integers(0, 60).map(lambda n: n * MINUTE), key=st.just("now"),
    shape=shapes, open=st.booleans(), draining=st.booleans(), waited_for=st.booleans(), agents=agents, scopes=scopes,
)  # fmt: skip


@given(pools)
def test_a_fill_neither_overshoots_the_pool_nor_a_cap(pool: Pool) -> None:
    started = deficit(pool)

    assert started >= 0
    if started:
        assert pool.ready + pool.in_flight + started <= pool.target
        assert pool.open
        assert not pool.draining
        assert not pool.waited_for
        for scope in pool.scopes:
            assert scope.max_agents is None or scope.agents + started <= scope.max_agents
            for limit, used, each in (
                (scope.max_mcpu, scope.mcpu, pool.shape.mcpu),
                (scope.max_mem_bytes, scope.mem_bytes, pool.shape.mem_bytes),
            ):
                assert limit is None or each == 0 or used + started * each <= limit


@given(pools, st.integers(1, 5))
def test_more_that_are_ready_never_start_more(pool: Pool, more: int) -> None:
    fuller = replace(pool, agents=[*pool.agents, *(WarmAgent(f"m{n}", "now", MINUTE) for n in range(more))])

    assert deficit(fuller) <= deficit(pool)


@given(pools)
def test_a_pool_that_is_wanted_keeps_what_it_wants(pool: Pool) -> None:
    decided = plan(pool)

    if pool.target and not pool.draining:
        usable = {a.agent_id for a in pool.agents if a.leaving is None and a.key == pool.key and a.idle is not None}
        let_go = usable & decided.release.keys()
        assert len(usable) - len(let_go) >= min(pool.target, len(usable))
        assert all(a.idle is not None and a.idle >= pool.idle_timeout for a in pool.agents if a.agent_id in let_go)


@given(pools)
def test_who_was_asked_to_go_is_not_asked_for_another_reason(pool: Pool) -> None:
    decided = plan(pool)

    assert not {a.agent_id for a in pool.agents if a.leaving is not None} & decided.release.keys()
    assert not set(decided.remind) & decided.release.keys()


@given(pools)
def test_nothing_is_started_for_a_pool_that_lets_everybody_go(pool: Pool) -> None:
    for empty in (replace(pool, target=0), replace(pool, draining=True), replace(pool, key=None)):
        decided = plan(empty)

        assert decided.start == 0
        assert decided.release.keys() == {a.agent_id for a in pool.agents if a.leaving is None}


def test_surplus_goes_oldest_first() -> None:
    there = [WarmAgent(name, "now", idle * MINUTE) for name, idle in (("young", 1), ("old", 30), ("older", 40))]

    decided = plan(Pool(target=1, idle_timeout=15 * MINUTE, key="now", agents=there))

    assert decided == Plan(release={"older": EndReason.IDLE, "old": EndReason.IDLE})


def test_no_cap_is_no_limit() -> None:
    assert head_room([Scope(None, 5, None, 5, None, 5)], Shape(mcpu=1)) is None
