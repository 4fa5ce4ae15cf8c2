"""A gateway as agents see it, and agents that got as far as a test needs them. The test plays the agents."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from hatchway.client import Started
from tests.support.lab import Lab
from tests.support.namespaces import until


def nonce() -> str:
    return secrets.token_urlsafe(16)


@dataclass
class Door:
    """A running gateway, and the calls of an agent on it."""

    url: str
    http: httpx.AsyncClient
    stop: Callable[[], Awaitable[None]]

    async def redeem(self, code: str, with_nonce: str | None = None) -> httpx.Response:
        return await self.post("claims/redeem", None, claim_code=code, nonce=with_nonce or nonce())

    async def register(self, token: str, registration: str = "process-1") -> httpx.Response:
        return await self.post("agents/register", token, registration_id=registration, agent_version="test")

    async def heartbeat(self, token: str, registration: str = "process-1") -> httpx.Response:
        return await self.post("agents/heartbeat", token, registration_id=registration, busy=True)

    async def complete(
        self, token: str, result: str = "succeeded", registration: str = "process-1", exit_code: int = 0
    ) -> httpx.Response:
        return await self.post(
            "agents/complete", token, registration_id=registration, result=result, exit_code=exit_code
        )

    async def post(self, path: str, token: str | None, **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return await self.http.post(f"{self.url}/v1/{path}", json=body, headers=headers)


@dataclass
class Agent:
    """An agent that has been spawned: its provision, its claim code, and its token once `redeemed` has run."""

    started: Started
    code: str = field(repr=False)
    token: str = field(repr=False, default="")

    @property
    def id(self) -> str:
        return self.started.agent_id


OpenDoor = Callable[..., Awaitable[Door]]


async def spawned(lab: Lab, **request: Any) -> Agent:
    """An agent whose compute has been started, and that has not called yet."""
    started = await lab.provision(**request)
    spec = await until(lambda: lab.backend.specs.get(started.agent_id), what="the spawn")
    return Agent(started, spec.env["KICI_SCALER_CLAIM_CODE"])


async def redeemed(lab: Lab, door: Door, **request: Any) -> Agent:
    """An agent that holds its token."""
    agent = await spawned(lab, **request)
    answer = await door.redeem(agent.code)
    assert answer.status_code == 200, answer.text
    agent.token = answer.json()["token"]
    return agent


async def registered(lab: Lab, door: Door, **request: Any) -> Agent:
    """An agent that has been adopted through `door`, by the process `process-1`."""
    agent = await redeemed(lab, door, **request)
    answer = await door.register(agent.token)
    assert answer.status_code == 200, answer.text
    return agent


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Status and error name; fails the test unless the body is exactly `{error, message}`."""
    body = answer.json()
    assert set(body) == {"error", "message"}
    assert body["message"]
    return answer.status_code, body["error"]
