"""The steps of a purge: each deletes one kind of what is spent, batch by batch."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity

from activities.errors import store_errors
from hatchway.config.current import CurrentConfig
from hatchway.config.schema import Config
from hatchway.metrics import Metrics
from hatchway.model import PurgeInput, PurgeKind, SweptStep
from hatchway.store.purging import BATCH, Purging

BATCHES_A_PASS = 200
"""What is left is deleted by the next pass: a backlog must not keep the others waiting for the database."""


class PurgeActivities:
    def __init__(self, purging: Purging, config: CurrentConfig, metrics: Metrics) -> None:
        self._purging = purging
        self._config = config
        self._metrics = metrics

    @activity.defn
    async def purge(self, ask: PurgeInput) -> SweptStep:
        """Delete what of this kind is past its retention, which is read from the configuration in force."""
        purged = 0
        with store_errors(self._metrics):
            version, _ = await self._config.current()
            await self._config.newer_than(version)
            retention = _retention(ask.kind, (await self._config.current())[1])
            for _ in range(BATCHES_A_PASS):
                activity.heartbeat()
                batch = await self._purging.purge(ask.kind, retention)
                purged += batch
                if batch < BATCH:
                    break
        return SweptStep(done={"purged": purged})


def _retention(kind: PurgeKind, config: Config) -> timedelta:
    match kind:
        case PurgeKind.CLAIMS | PurgeKind.TOKENS | PurgeKind.PRESENCE:
            return timedelta(seconds=config.reaper.claim_retention_seconds)
        case PurgeKind.OUTCOMES | PurgeKind.JOBS | PurgeKind.INSTANCES:
            return config.outcome_retention
