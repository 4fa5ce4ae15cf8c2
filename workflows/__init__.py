"""Deterministic orchestration. `ALL` is what a worker registers and what the replayer is given.

The SDK's own sandbox, which a replayer has, loads a run's own module anew for each run, and this package with it. So
the list is made when it is asked for: a run would otherwise load every other workflow too.
"""

from __future__ import annotations

from typing import Any

ALL: list[type[Any]]


def __getattr__(name: str) -> Any:
    if name != "ALL":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from workflows.provision import ProvisionWorkflow
    from workflows.purge import PurgeWorkflow
    from workflows.reclaim import ReclaimWorkflow
    from workflows.sweep import SweepWorkflow
    from workflows.teardown import TeardownWorkflow
    from workflows.warm_pool import WarmPoolWorkflow

    return [ProvisionWorkflow, PurgeWorkflow, ReclaimWorkflow, SweepWorkflow, TeardownWorkflow, WarmPoolWorkflow]
