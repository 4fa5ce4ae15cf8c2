"""Hatchway's own metrics, through the Temporal runtime's meter: one Prometheus page for ours and the SDK's.

Each metric is a method, so that its name and its labels are spelled once.
"""

from __future__ import annotations

from temporalio.client import Client
from temporalio.common import MetricMeter
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig


def runtime(bind: str | None) -> Runtime:
    """The runtime to connect the process's client with. `bind` is host:port of the metrics page; None: no page.

    A process may make one only: the page belongs to the runtime that was made first.
    """
    if bind is None:
        return Runtime(telemetry=TelemetryConfig())
    return Runtime(telemetry=TelemetryConfig(metrics=PrometheusConfig(bind_address=bind)))


class Metrics:
    """What the processes of Hatchway count."""

    def __init__(self, meter: MetricMeter) -> None:
        self._claim_redemptions = meter.create_counter(
            "hatchway_claim_redemptions_total", "Redeemed and refused claims, by result"
        )

    @classmethod
    def of(cls, client: Client) -> Metrics:
        """On the runtime that the client was connected with, else on the default one, which counts nothing."""
        configured = client.service_client.config.runtime
        return cls((configured or Runtime.default()).metric_meter)

    def claim_redemption(self, result: str) -> None:
        """`result` is redeemed, unknown, consumed, expired, tearing-down or rate-limited."""
        self._claim_redemptions.add(1, {"result": result})
