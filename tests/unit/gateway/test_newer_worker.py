"""On an upgrade workers go before gateways, so a gateway hears answers of a newer release."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from hatchway.converter import data_converter
from hatchway.errors import ErrorType
from hatchway.gateway.provisions import Provisions
from hatchway.gateway.wire import RegisterAnswer
from hatchway.model import AdoptRequest
from workflows.requests import parse

REQUEST = AdoptRequest(agent_id="scaler-1", instance_id="gateway-1", registration_id="r-1")
ANSWER = {"agent_id": "scaler-1", "scaler": "laptop", "labels": ["linux"]}


class Newer:
    """A workflow whose answer has a field that this release does not know."""

    def get_workflow_handle(self, *_: object, **__: object) -> Newer:
        return self

    async def execute_update(self, *_: object, result_type: type[Any], **__: object) -> Any:
        (answer,) = await data_converter.decode(await data_converter.encode([ANSWER | {"zone": "a"}]), [result_type])
        return answer


async def test_an_answer_is_read_without_what_this_gateway_does_not_know() -> None:
    client: Any = Newer()

    spec = await Provisions(client, timedelta(seconds=5)).adopt("provision/job/1", "run-1", REQUEST)

    assert (spec.agent_id, spec.scaler, spec.labels) == ("scaler-1", "laptop", ["linux"])
    assert "zone" not in spec.model_dump()
    assert RegisterAnswer(**spec.model_dump(), heartbeat_interval_s=30, heartbeat_timeout_s=90).agent_id == "scaler-1"


def test_the_other_way_round_a_newer_gateways_request_is_refused() -> None:
    """Why workers go first."""
    with pytest.raises(Exception, match="zone") as refused:
        parse(AdoptRequest, (REQUEST.model_dump() | {"zone": "a"},))

    assert getattr(refused.value, "type", None) == ErrorType.INVALID_REQUEST
