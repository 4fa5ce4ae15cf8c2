"""What receivers ask for when they do not take a teardown yet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from hatchway.backends import event_addresses
from hatchway.backends.event import EventBackend
from hatchway.errors import DestroyError
from hatchway.metrics import Metrics
from hatchway.model import ScaleDownReason
from tests.support.customer import FixedConfig, event_scaler, facts_of, fresh_agent_id
from tests.support.tls_receiver import NAME, Receiver, a_receiver, answer

HOOKS = {"contexts": {"hooks": {"type": "env", "targets": [NAME]}}}


@pytest.fixture
async def receivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Receiver]]:
    """Two of one name, as a test has DNS."""

    async def look_up(host: str, port: int) -> list[Any]:
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(event_addresses, "_look_up", look_up)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with a_receiver(first) as one, a_receiver(second) as other:
        yield [one, other]


@pytest.fixture
def own(temporal: Any) -> Client:
    client: Client = temporal.client
    return client


@pytest.mark.parametrize("beside", [200, 503, 401], ids=["taken", "away", "refused"])
async def test_a_teardown_that_is_put_off_carries_the_pause(
    own: Client, receivers: list[Receiver], beside: int
) -> None:
    settings = event_scaler(*map(target_of, receivers), secrets=HOOKS)
    config = FixedConfig.of(settings, HATCHWAY_SECRET_KEY="signing-key-of-the-test-0123456789")
    backend = EventBackend("customers", own, config, Metrics.of(own))
    receivers[0].answers = [answer(429, Retry_After="77")]
    receivers[1].answers = [answer(beside)]

    with pytest.raises(DestroyError, match="not taken yet") as put_off:
        await backend.destroy(fresh_agent_id(), facts_of(config.scaler), ScaleDownReason.IDLE)

    assert put_off.value.retry_after == timedelta(seconds=77)


def target_of(receiver: Receiver) -> dict[str, Any]:
    return {
        "scaleUp": receiver.url,
        "signingSecret": "hooks:key",
        "allowAddresses": ["127.0.0.0/8"],
        "caFile": str(receiver.ca_file),
    }
