"""The names of the task queues, and who polls them."""

CONTROL = "hatchway"
"""Workflows, database and light activities. Every worker polls it."""


def spawn_queue(scaler: str) -> str:
    """Spawns of one scaler: polled by the workers that can reach its backend, with `maxConcurrentSpawns` slots."""
    return f"hatchway.spawn.{scaler}"


def host_queue(host_id: str) -> str:
    """Everything that must happen where the compute is: retries of a bound spawn, teardown, reclaim."""
    return f"hatchway.host.{host_id}"
