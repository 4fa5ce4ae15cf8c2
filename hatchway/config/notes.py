"""What is allowed in a configuration, and worth a word to whoever checks or applies it."""

from __future__ import annotations

from itertools import combinations

from hatchway.config.schema import Config, Scaler, ScalerType


def notes(config: Config) -> list[str]:
    """One sentence each; empty for most."""
    return _several_engines(config)


def _several_engines(config: Config) -> list[str]:
    """Nothing here knows how workers are started, nor whether two addresses lead to one engine."""
    containers = [scaler for scaler in config.scalers if scaler.type is ScalerType.CONTAINER]
    pairs = [
        (first.name, second.name)
        for first, second in combinations(containers, 2)
        if first.host != second.host and _share_a_worker(first, second)
    ]
    if not pairs:
        return []
    names = sorted({name for pair in pairs for name in pair})
    return [
        f"scalers {', '.join(names)} lead to container engines by more than one `host`: a worker that was started with "
        "--host-id serves one engine only, and leaves the others alone. Start a worker for each, or one without "
        "--host-id, or name each scaler's workers in its `hosts`"
    ]


def _share_a_worker(first: Scaler, second: Scaler) -> bool:
    return not first.hosts or not second.hosts or not set(first.hosts).isdisjoint(second.hosts)
