"""A container that should go is removed by force, whatever the engine says to the signal before."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from docker.errors import APIError
from requests import Response

from hatchway.backends.container_create import AGENT_ID, STOP_GRACE
from hatchway.backends.container_engine import Engine
from hatchway.backends.container_errors import EngineUnreachable
from hatchway.backends.container_stop import Stopper


def _refusal(status: int, text: str) -> APIError:
    response = Response()
    response.status_code = status
    return APIError(text, response=response, explanation=text)


class Api:
    """One running container with a grace. `answers`: what is said to each signal, by name; a silent end by default."""

    def __init__(self, answers: dict[str, Exception | None]) -> None:
        self._answers = answers
        self.signals: list[str] = []
        self.running = True
        self.removed = False

    def inspect_container(self, _container: str) -> dict[str, Any]:
        return {
            "Name": "/hatchway-stopping-scaler-1",
            "Config": {"Labels": {AGENT_ID: "scaler-1", STOP_GRACE: "3600"}, "StopSignal": "BOGUS"},
            "State": {"Running": self.running, "Paused": False},
        }

    def kill(self, _container: str, signal: str) -> None:
        self.signals.append(signal)
        answer = self._answers.get(signal)
        if answer is not None:
            raise answer
        self.running = False

    def remove_container(self, _container: str, *, v: bool, force: bool) -> None:
        assert (v, force) == (True, True)
        self.removed = True


class StandIn(Engine):
    """An engine without a socket, whose client is `api`; all else of it is real."""

    def __init__(self, api: Api) -> None:
        super().__init__("unix:///stand-in")
        self._client = api


REFUSALS = [
    _refusal(400, "Invalid signal: BOGUS"),
    _refusal(403, "signals are forbidden by the authorization plugin"),
    _refusal(500, "cannot kill container: permission denied"),
    _refusal(501, "not implemented"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda e: str(e.status_code))
async def test_a_refused_signal_gives_way_to_sigterm(refusal: APIError) -> None:
    api = Api({"BOGUS": refusal})

    await Stopper(StandIn(api)).remove("c1")

    assert api.signals == ["BOGUS", "SIGTERM"]
    assert api.removed


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda e: str(e.status_code))
async def test_a_container_that_can_be_sent_no_signal_gets_no_grace_and_is_removed(refusal: APIError) -> None:
    api = Api({"BOGUS": refusal, "SIGTERM": refusal})

    await Stopper(StandIn(api)).remove("c1")

    assert api.signals == ["BOGUS", "SIGTERM"]
    assert api.removed


async def test_an_engine_that_does_not_answer_the_signal_is_asked_again_later_and_no_grace_is_skipped() -> None:
    api = Api({"BOGUS": requests.ConnectionError("reset"), "SIGTERM": requests.ConnectionError("reset")})

    with pytest.raises(EngineUnreachable, match="cannot be reached"):
        await Stopper(StandIn(api)).remove("c1")

    assert api.signals == ["BOGUS"]
    assert not api.removed
