"""What one agent takes of its scaler's CPU and memory: the job's word, else the label set's, else the default.

CPU and memory are decided apart from each other, each by the first of the three that says anything about it. That one
decides both the request and the limit; where it gives only one of them, the other is the same. Levels are never mixed
within one kind: a job that asks for 4 CPUs under a default limit of 2 would be a contradiction that nobody wrote.
Pure: no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from hatchway.model import ResourceRequest
from hatchway.quantities import parse_cpus, parse_memory


@dataclass(frozen=True)
class Shape:
    """What is reserved (counted under the caps), and what the compute may use at most.

    `mcpu` in thousandths of a CPU, `mem_bytes` in bytes; 0 reserves nothing. A limit of None is no limit.
    """

    mcpu: int = 0
    mem_bytes: int = 0
    limit_mcpu: int | None = None
    limit_mem_bytes: int | None = None


def shape(job: ResourceRequest | None, label_set: ResourceRequest | None, defaults: ResourceRequest | None) -> Shape:
    """The shape of an agent. The amounts were validated by their models, so this raises nothing."""
    levels = [level for level in (job, label_set, defaults) if level is not None]
    mcpu, limit_mcpu = next((pair for level in levels if (pair := _cpus(level)) is not None), (0, None))
    mem_bytes, limit_mem_bytes = next((pair for level in levels if (pair := _memory(level)) is not None), (0, None))
    return Shape(mcpu=mcpu, mem_bytes=mem_bytes, limit_mcpu=limit_mcpu, limit_mem_bytes=limit_mem_bytes)


def _cpus(level: ResourceRequest) -> tuple[int, int] | None:
    request, limit = (
        parse_cpus(side.cpus) if side is not None and side.cpus is not None else None
        for side in (level.requests, level.limits)
    )
    return _mirrored(request, limit)


def _memory(level: ResourceRequest) -> tuple[int, int] | None:
    request, limit = (
        parse_memory(side.memory) if side is not None and side.memory is not None else None
        for side in (level.requests, level.limits)
    )
    return _mirrored(request, limit)


def _mirrored(request: int | None, limit: int | None) -> tuple[int, int] | None:
    if request is None and limit is None:
        return None
    if request is None:
        assert limit is not None  # noqa: S101 - narrows for the type checker; both None returned above
        return limit, limit
    return request, request if limit is None else limit
