"""Warm pools: what a pool lacks, what it has too much of, and which jobs its agents serve. Pure: no I/O.

A warm agent was made before its job was known, so it serves only jobs for which nothing would have been made otherwise:
same label set, same image, same limits, and nothing in its environment that it does not have. What it was made as is
its *key*; under a configuration that would make it otherwise now, it serves nobody any more and is let go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from hatchway.config.schema import Config, LabelSet, Scaler, ScalerType
from hatchway.errors import InvalidReference
from hatchway.model import EndReason, ProvisionRequest, ResourceRequest
from hatchway.registry.reference import parse_reference
from hatchway.resources import Shape, shape

SAME_AGENT = frozenset({
    "warm_pool", "max_agents", "resource_cap", "machine_pool", "max_concurrent_spawns", "label_sets", "allow_job_image",
    "claim_ttl_seconds", "agent_token_ttl_seconds", "spawn_timeout_seconds", "adoption_timeout_seconds",
    "max_lifetime_seconds", "stop_grace_seconds",
})  # fmt: skip
"""Keys of a scaler that may change without its agents being made otherwise. Every other one, also a new one, counts."""

RESEND_AFTER = timedelta(seconds=10)
"""An agent that was asked to go and stands there that long has not heard of it."""


def targets(config: Config) -> dict[str, int]:
    """Scaler to how many warm agents it should have; of scalers with a pool."""
    return {scaler.name: scaler.warm_pool.size for scaler in config.scalers if scaler.warm_pool is not None}


def key(scaler: Scaler, label_set: LabelSet, defaults: ResourceRequest | None) -> str:
    """What an agent of this label set is made as without a job. Equal keys: no job can tell them apart."""
    made = shape(None, label_set.resources, defaults)
    content = {
        "scaler": scaler.model_dump(mode="json", exclude=set(SAME_AGENT)),
        "label_set": label_set.model_dump(mode="json"),
        "shape": [made.mcpu, made.mem_bytes, made.limit_mcpu, made.limit_mem_bytes],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def serves(scaler: Scaler, label_set: LabelSet, request: ProvisionRequest, defaults: ResourceRequest | None) -> bool:
    """Whether an agent that was made for no job would do for this one, which the label set matches."""
    if request.job_id is None or scaler.warm_pool is None or scaler.warm_label_set != label_set:
        return False
    return (
        _brings_nothing(request)
        and _image_is_the_same(scaler, label_set, request)
        and _fits(shape(request.resources, label_set.resources, defaults), shape(None, label_set.resources, defaults))
    )


def _brings_nothing(request: ProvisionRequest) -> bool:
    """Credentials and environment go into compute when it is made; nothing is put there later."""
    return request.container is None or (request.container.auth is None and not request.container.env)


def _image_is_the_same(scaler: Scaler, label_set: LabelSet, request: ProvisionRequest) -> bool:
    container = request.container
    if scaler.type is not ScalerType.CONTAINER or not scaler.allow_job_image:
        return True
    if container is None or container.image is None or label_set.image is None:
        return container is None or container.image is None
    try:
        return parse_reference(container.image) == parse_reference(label_set.image)
    except InvalidReference:
        return False


def _fits(job: Shape, made: Shape) -> bool:
    """At least what the job reserves, and exactly its limits: it must not run with more, or with less."""
    return (
        job.mcpu <= made.mcpu
        and job.mem_bytes <= made.mem_bytes
        and (job.limit_mcpu, job.limit_mem_bytes) == (made.limit_mcpu, made.limit_mem_bytes)
    )


@dataclass(frozen=True)
class Scope:
    """A cap and its use. None: no cap on that."""

    max_agents: int | None
    agents: int
    max_mcpu: int | None
    mcpu: int
    max_mem_bytes: int | None
    mem_bytes: int


@dataclass(frozen=True)
class WarmAgent:
    """One agent of a pool that has no job. `idle` runs from its adoption; None while it is being made.

    `leaving`: for how long it has been asked to go, None if it has not.
    """

    agent_id: str
    key: str
    idle: timedelta | None
    leaving: timedelta | None = None


@dataclass(frozen=True)
class Pool:
    """A scaler's warm pool as it stands. `key` is None where the configuration has no pool (any more)."""

    target: int = 0
    idle_timeout: timedelta = timedelta()
    key: str | None = None
    shape: Shape = field(default_factory=Shape)
    open: bool = True
    """It accepts, and does not back off."""
    draining: bool = False
    waited_for: bool = False
    agents: Sequence[WarmAgent] = ()
    scopes: Sequence[Scope] = ()

    @property
    def ready(self) -> int:
        return sum(1 for agent in self._kept() if agent.idle is not None)

    @property
    def in_flight(self) -> int:
        return sum(1 for agent in self._kept() if agent.idle is None)

    def _kept(self) -> Iterable[WarmAgent]:
        return (agent for agent in self.agents if agent.leaving is None and agent.key == self.key)


@dataclass(frozen=True)
class Plan:
    """What to do for a pool: how many to start, whom to release and why, whom to tell again that it was released."""

    start: int = 0
    release: dict[str, EndReason] = field(default_factory=dict)
    remind: list[str] = field(default_factory=list)


def head_room(scopes: Iterable[Scope], each: Shape) -> int | None:
    """How many agents of this shape still fit under all of these caps. None: no cap binds."""
    rooms: list[int] = []
    for scope in scopes:
        if scope.max_agents is not None:
            rooms.append(scope.max_agents - scope.agents)
        if scope.max_mcpu is not None and each.mcpu > 0:
            rooms.append((scope.max_mcpu - scope.mcpu) // each.mcpu)
        if scope.max_mem_bytes is not None and each.mem_bytes > 0:
            rooms.append((scope.max_mem_bytes - scope.mem_bytes) // each.mem_bytes)
    return max(0, min(rooms)) if rooms else None


def deficit(pool: Pool) -> int:
    """How many agents a fill starts now: what the pool lacks, as far as there is room that nobody waits for."""
    if not pool.open or pool.draining or pool.waited_for or pool.key is None:
        return 0
    lacking = max(0, pool.target - pool.ready - pool.in_flight)
    room = head_room(pool.scopes, pool.shape)
    return lacking if room is None else min(lacking, room)


def plan(pool: Pool) -> Plan:
    """Fill, or let go. Who is idle beyond the target goes after the idle timeout, oldest first; who can serve nobody
    any more (size 0, a drain, a scaler that left, another label set by now) goes at once.
    """
    staying = [agent for agent in pool.agents if agent.leaving is None]
    remind = [a.agent_id for a in pool.agents if a.leaving is not None and a.leaving >= RESEND_AFTER]
    if pool.draining:
        return Plan(release=dict.fromkeys((a.agent_id for a in staying), EndReason.DRAINED), remind=remind)
    if pool.target == 0 or pool.key is None:
        return Plan(release=dict.fromkeys((a.agent_id for a in staying), EndReason.IDLE), remind=remind)
    outdated = [agent for agent in staying if agent.key != pool.key]
    ready = [(agent.idle, agent.agent_id) for agent in staying if agent.key == pool.key and agent.idle is not None]
    ready.sort(reverse=True)
    surplus = [a for idle, a in ready[: max(0, len(ready) - pool.target)] if idle >= pool.idle_timeout]
    release = dict.fromkeys([*(a.agent_id for a in outdated), *surplus], EndReason.IDLE)
    return Plan(start=deficit(pool), release=release, remind=remind)
