"""Hatchway's own metrics, through the Temporal runtime's meter: one Prometheus page for ours and the SDK's.

Each metric is a method, so that its name and its labels are spelled once.
"""

from __future__ import annotations

from collections.abc import Mapping

from temporalio.client import Client
from temporalio.common import MetricMeter
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from hatchway.store.census import Counts

STRETCHES = tuple(
    f"hatchway_{name}_seconds" for name in ("request_to_slot", "slot_to_spawned", "spawned_to_adopted", "end_to_gone")
)
STRETCH_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
"""Seconds, from a slot that was free to a job that waited an hour. The SDK's own buckets are for milliseconds."""


def runtime(bind: str | None) -> Runtime:
    """The runtime to connect the process's client with. `bind` is host:port of the metrics page; None: no page.

    A process may make one only: the page belongs to the runtime that was made first.
    """
    if bind is None:
        return Runtime(telemetry=TelemetryConfig())
    buckets = dict.fromkeys(STRETCHES, STRETCH_BUCKETS)
    page = PrometheusConfig(bind_address=bind, histogram_bucket_overrides=buckets)
    return Runtime(telemetry=TelemetryConfig(metrics=page))


class Metrics:
    """What the processes of Hatchway count. Gauges are of the whole cluster: every worker reports the same."""

    def __init__(self, meter: MetricMeter) -> None:
        self._claim_redemptions = meter.create_counter(
            "hatchway_claim_redemptions_total", "Redeemed and refused claims, by result"
        )
        self._spawn_refusals = meter.create_counter(
            "hatchway_spawn_refusals_total", "Reservations that got no slot at once, by scaler and what bound"
        )
        self._cap_lock_failures = meter.create_counter(
            "hatchway_cap_lock_failures_total", "Store calls that did not get through, by reason"
        )
        self._spawn_failures = meter.create_counter("hatchway_spawn_failures_total", "Failed spawn attempts, by code")
        self._provision_timeouts = meter.create_counter(
            "hatchway_provision_timeout_total", "Agents that did not register before their deadline"
        )
        self._redispatches = meter.create_counter(
            "hatchway_redispatch_total",
            "Waiting provisions that were told to look again, by trigger",
        )
        self._scale_ups = meter.create_counter(
            "hatchway_scale_up_emitted_total", "Scale-up events that a target has taken, redelivered ones included"
        )
        self._scale_downs = meter.create_counter(
            "hatchway_scale_down_emitted_total", "Scale-down events that a target has taken, by reason"
        )
        self._agents = meter.create_gauge("hatchway_agents", "Agents that hold a slot, by scaler and state")
        self._cpus = meter.create_gauge_float("hatchway_cpus_used", "CPUs that are reserved, by scaler")
        self._memory = meter.create_gauge("hatchway_memory_bytes_used", "Memory that is reserved, by scaler", "By")
        self._waiters = meter.create_gauge("hatchway_waiters", "Provisions in the waiting line")
        self._oldest = meter.create_gauge_float(
            "hatchway_oldest_waiter_seconds", "How long the provision that has waited longest has waited", "s"
        )
        self._pool_target = meter.create_gauge(
            "hatchway_warm_pool_target", "Warm agents that should stand ready, by scaler"
        )
        self._pool_ready = meter.create_gauge("hatchway_warm_pool_ready", "Warm agents that stand ready, by scaler")
        self._pool_in_flight = meter.create_gauge(
            "hatchway_warm_pool_in_flight", "Warm agents that are being made, by scaler"
        )
        self._reap_blocked = meter.create_gauge(
            "hatchway_reap_blocked", "1 while agents are silent and no gateway was there for long enough to hear them"
        )
        self._reap_unseen = meter.create_gauge(
            "hatchway_reap_unseen_provisions", "Silent agents that are spared because nobody could have heard them"
        )
        self._seen: set[tuple[str, str]] = set()
        self._pools_seen: set[str] = set()

    @classmethod
    def of(cls, client: Client) -> Metrics:
        """On the runtime that the client was connected with, else on the default one, which counts nothing."""
        configured = client.service_client.config.runtime
        return cls((configured or Runtime.default()).metric_meter)

    def claim_redemption(self, result: str) -> None:
        """`result` is redeemed, unknown, consumed, expired, tearing-down or rate-limited."""
        self._claim_redemptions.add(1, {"result": result})

    def spawn_refused(self, scaler: str, cap: str) -> None:
        """`cap` is the scope that bound and why: `global full`, `scaler:x draining`."""
        self._spawn_refusals.add(1, {"scaler": scaler, "cap": cap})

    def cap_lock_failed(self, reason: str) -> None:
        """`reason` is contended or unreachable."""
        self._cap_lock_failures.add(1, {"reason": reason})

    def spawn_failed(self, code: str) -> None:
        """`code` is a SpawnCode, or `unforeseen`."""
        self._spawn_failures.add(1, {"code": code})

    def redispatched(self, trigger: str, number: int = 1) -> None:
        """`trigger` is `hand-over` (somebody left, and told the next) or `sweep`. Commands count nothing."""
        if number:
            self._redispatches.add(number, {"trigger": trigger})

    def scale_up_emitted(self) -> None:
        """Count a scale-up event that a target has taken."""
        self._scale_ups.add(1)

    def scale_down_emitted(self, reason: str) -> None:
        """Count a scale-down event that a target has taken; `reason` is the wire's."""
        self._scale_downs.add(1, {"reason": reason})

    def provision_timed_out(self) -> None:
        self._provision_timeouts.add(1)

    def census(self, counted: Counts) -> None:
        """Set the gauges. A scaler's state that has emptied is set to 0 once it has been seen."""
        self._seen |= counted.agents.keys()
        for scaler, state in self._seen:
            self._agents.set(counted.agents.get((scaler, state), 0), {"scaler": scaler, "state": state})
        for scaler, (mcpu, mem_bytes) in counted.reserved.items():
            self._cpus.set(mcpu / 1000, {"scaler": scaler})
            self._memory.set(mem_bytes, {"scaler": scaler})
        self._waiters.set(counted.waiters)
        self._oldest.set(counted.oldest_waiter_seconds)

    def reaping(self, *, blocked: bool, unseen: int) -> None:
        """Set the gauges of the reaper's sight."""
        self._reap_blocked.set(int(blocked))
        self._reap_unseen.set(unseen)

    def warm_pools(self, targets: Mapping[str, int], standing: Mapping[str, tuple[int, int]]) -> None:
        """Set the gauges of the pools. `standing`: (ready, in flight). One that has gone is set to 0."""
        self._pools_seen |= targets.keys() | standing.keys()
        for scaler in self._pools_seen:
            ready, in_flight = standing.get(scaler, (0, 0))
            self._pool_target.set(targets.get(scaler, 0), {"scaler": scaler})
            self._pool_ready.set(ready, {"scaler": scaler})
            self._pool_in_flight.set(in_flight, {"scaler": scaler})
