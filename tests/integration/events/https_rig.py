"""What tests of `https:` targets have in common: names that resolve as a test wants it, a backend, a target."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from temporalio.client import Client

from hatchway.backends import event_addresses
from hatchway.backends.event import EventBackend
from hatchway.metrics import Metrics
from tests.support.customer import FixedConfig, event_scaler
from tests.support.tls_receiver import (
    NAME,
    Receiver,
)

KEY = "signing-key-of-the-test-0123456789"
LOOPBACK = ["127.0.0.0/8"]


class Names:
    """DNS as a test has it: each look-up takes the next answer, and the last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[list[str]] = [["127.0.0.1"]]
        self.asked: list[str] = []
        monkeypatch.setattr(event_addresses, "_look_up", self._look_up)

    async def _look_up(self, host: str, port: int) -> list[Any]:
        self.asked.append(host)
        found = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in one], socket.SOCK_STREAM, 6, "", (one, port)) for one in found]


def backend_of(temporal: Client, *targets: dict[str, Any], key: str = KEY) -> tuple[EventBackend, FixedConfig]:
    secrets = {"contexts": {"hooks": {"type": "env", "targets": [NAME, "127.0.0.1"]}}}
    config = FixedConfig.of(event_scaler(*targets, secrets=secrets), HATCHWAY_SECRET_KEY=key)
    return EventBackend("customers", temporal, config, Metrics.of(temporal)), config


def target_of(receiver: Receiver, **settings: Any) -> dict[str, Any]:
    return {
        "scaleUp": receiver.url, "signingSecret": "hooks:key", "caFile": str(receiver.ca_file),
        "allowAddresses": LOOPBACK, **settings,
    }  # fmt: skip
