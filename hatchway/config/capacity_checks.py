"""What caps, pools, warm pools and windows say about each other. As in `checks.py`: generators of (path, sentence)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hatchway import heartbeats
from hatchway.config.document import Path_
from hatchway.config.schema import (
    Backoff,
    Config,
    Defaults,
    LabelSet,
    MachinePool,
    Reaper,
    ResourceCap,
    Scaler,
    ScalerType,
    WarmPool,
)
from hatchway.labels import fold, fold_all
from hatchway.resources import Shape, shape

Problem = tuple[Path_, str]


@dataclass(frozen=True)
class Surroundings:
    """What a scaler's capacity is checked against. None: that part of the file cannot be read, and accuses nobody."""

    pools: Mapping[str, MachinePool | None]
    defaults: Defaults | None
    everything: ResourceCap | None = None

    @classmethod
    def of(cls, config: Config) -> Surroundings:
        return cls({pool.name: pool for pool in config.machine_pools}, config.defaults, config.global_resource_cap)


def check_pools(pools: Sequence[tuple[int, MachinePool]]) -> Iterator[Problem]:
    """The pools by themselves. `pools` are those that could be read, with their index in the file."""
    names: dict[str, int] = {}
    for index, pool in pools:
        if names.setdefault(fold(pool.name), index) != index:
            yield ("machinePools", index, "name"), "is the name of an earlier pool too; names know no case"


def check_windows(
    backoff: Backoff | None, reaper: Reaper | None, scalers: Sequence[tuple[int, Scaler]]
) -> Iterator[Problem]:
    """How long is waited for what."""
    if backoff is not None and backoff.max_seconds < backoff.base_seconds:
        where = "maxSeconds" if "max_seconds" in backoff.model_fields_set else "baseSeconds"
        yield (
            ("backoff", where),
            f"maxSeconds ({backoff.max_seconds}) is less than baseSeconds ({backoff.base_seconds})",
        )
    if reaper is not None:
        for path, message in _check_reaper(reaper, scalers):
            yield ("reaper", *path), message


def _check_reaper(reaper: Reaper, scalers: Sequence[tuple[int, Scaler]]) -> Iterator[Problem]:
    if reaper.stranded_timeout_seconds < reaper.flap_grace_seconds:
        stranded = "stranded_timeout_seconds" in reaper.model_fields_set
        yield (
            ("strandedTimeoutSeconds" if stranded else "flapGraceSeconds",),
            f"strandedTimeoutSeconds ({reaper.stranded_timeout_seconds}) is less than flapGraceSeconds "
            f"({reaper.flap_grace_seconds}): an agent would be given up before it could have come back",
        )
    yield from _check_silences(reaper)
    longest = max((scaler for _, scaler in scalers), key=lambda s: s.spawn_timeout_seconds, default=None)
    retention = reaper.outcome_retention_seconds
    if retention is not None and longest is not None and retention < 2 * longest.spawn_timeout_seconds:
        yield (
            ("outcomeRetentionSeconds",),
            f"is less than twice the spawnTimeoutSeconds of {longest.name} ({longest.spawn_timeout_seconds}): "
            "a late retry would no longer hear that its agent has ended",
        )


def _check_silences(reaper: Reaper) -> Iterator[Problem]:
    """An agent at work, and a gateway that is there, are silent between two heartbeats."""
    agent, instance = (round(every.total_seconds()) for every in (heartbeats.AGENT, heartbeats.INSTANCE))
    least = heartbeats.BEATS * agent
    if max(reaper.agent_timeout_seconds, reaper.flap_grace_seconds) < least:
        yield (
            ("agentTimeoutSeconds",),
            f"agentTimeoutSeconds ({reaper.agent_timeout_seconds}) and flapGraceSeconds ({reaper.flap_grace_seconds}) "
            f"are both less than {least}: agents are heard of every {agent} s, and one at work whose workflow is gone "
            f"would be ended between two heartbeats; make one of them {least} or more",
        )
    if reaper.instance_timeout_seconds < heartbeats.BEATS * instance:
        yield (
            ("instanceTimeoutSeconds",),
            f"is less than {heartbeats.BEATS * instance}: gateways and workers are heard of every {instance} s, and "
            "would be taken for gone between two heartbeats",
        )


def check_capacity(scaler: Scaler, surroundings: Surroundings) -> Iterator[Problem]:
    """One scaler's pool and warm pool. Paths are relative to the scaler."""
    yield from _check_machine_pool(scaler, surroundings)
    if scaler.warm_pool is not None:
        for path, message in _check_warm_pool(scaler, scaler.warm_pool, surroundings):
            yield ("warmPool", *path), message


def _check_machine_pool(scaler: Scaler, surroundings: Surroundings) -> Iterator[Problem]:
    name = scaler.machine_pool
    if name is None or name in surroundings.pools:
        return
    if not surroundings.pools:
        yield ("machinePool",), "names a pool, and the file has no `machinePools`"
        return
    known = {fold(pool): pool for pool in surroundings.pools}
    close = difflib.get_close_matches(fold(name), known, n=1, cutoff=0.7)
    hint = f"did you mean {known[close[0]]}?" if close else f"known pools: {', '.join(surroundings.pools)}"
    yield ("machinePool",), f"is none of `machinePools`; {hint}"


def _check_warm_pool(scaler: Scaler, pool: WarmPool, surroundings: Surroundings) -> Iterator[Problem]:
    if pool.size > scaler.max_agents:
        yield ("size",), f"is more than the scaler's maxAgents ({scaler.max_agents})"
    label_set = scaler.warm_label_set
    if label_set is None:
        yield _no_label_set(scaler, pool)
        return
    if pool.size == 0:
        return
    if scaler.type is ScalerType.CONTAINER and label_set.image is None:
        yield (), "needs an `image` on its label set: a warm agent is made before there is a job to bring one"
    if surroundings.defaults is not None:
        yield from _check_warm_shape(scaler, label_set, surroundings.defaults, surroundings)


def _no_label_set(scaler: Scaler, pool: WarmPool) -> Problem:
    if pool.labels is None:
        return (), f"needs `labels`: the scaler has {len(scaler.label_sets)} label sets, and warm agents are of one"
    if sum(fold_all(one.labels) == fold_all(pool.labels) for one in scaler.label_sets) > 1:
        return ("labels",), "are those of several label sets of the scaler; warm agents are of one"
    return ("labels",), "are not those of a label set of the scaler: list all labels of one, in any order"


def _check_warm_shape(
    scaler: Scaler, label_set: LabelSet, defaults: Defaults, surroundings: Surroundings
) -> Iterator[Problem]:
    one = shape(None, label_set.resources, defaults.resources)
    missing = [kind for kind, amount in (("cpus", one.mcpu), ("memory", one.mem_bytes)) if amount == 0]
    if missing:
        yield (
            (),
            f"needs declared {' and '.join(missing)}, on its label set or in defaults.resources: a warm agent is "
            "reserved before there is a job to say what it takes",
        )
    caps: list[tuple[str, ResourceCap | None]] = [
        ("the scaler's resourceCap", scaler.resource_cap),
        (f"the machine pool {scaler.machine_pool}", surroundings.pools.get(scaler.machine_pool or "")),
        ("globalResourceCap", surroundings.everything),
    ]
    for where, cap in caps:
        for kind in _too_large(one, cap):
            yield (), f"can never be filled: one agent takes more {kind} than {where} allows"


def _too_large(one: Shape, cap: ResourceCap | None) -> Iterator[str]:
    if cap is None:
        return
    if cap.max_mcpu is not None and one.mcpu > cap.max_mcpu:
        yield "cpus"
    if cap.max_mem_bytes is not None and one.mem_bytes > cap.max_mem_bytes:
        yield "memory"
