"""The wire of the events: golden payloads, the published schemas, the reserved prefix, ids that survive redelivery."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from hatchway.events import (
    MODELS,
    EventName,
    ReservedNameError,
    Resources,
    ScaleDown,
    ScaleUp,
    json_schema,
    refuse_reserved,
    request_id,
)
from hatchway.model import ScaleDownReason

SCHEMAS = Path(__file__).parents[3] / "docs/events"
AGENT = "scaler-0123456789abcdef0123456789abcdef"

FULL = ScaleUp(
    scaler_name="lab",
    agent_id=AGENT,
    labels=["linux", "gpu", "kici:scaler:lab"],
    mandatory_labels=["gpu"],
    resources=Resources(cpus=0.5, mem_bytes=536870912),
    orchestrator_url="https://gateway.example.test",
    claim_code="the-claim",
    job_id="build-7",
    request_id=request_id(EventName.SCALE_UP, AGENT),
)
FULL_JSON = (
    b'{"scalerName":"lab","agentId":"scaler-0123456789abcdef0123456789abcdef",'
    b'"labels":["linux","gpu","kici:scaler:lab"],"mandatoryLabels":["gpu"],'
    b'"resources":{"cpus":0.5,"memBytes":536870912},"orchestratorUrl":"https://gateway.example.test",'
    b'"claimCode":"the-claim","jobId":"build-7",'
    b'"requestId":"scaler-0123456789abcdef0123456789abcdef:scale-up"}'
)
LEAST = ScaleUp(
    scaler_name="lab", agent_id=AGENT, labels=[], orchestrator_url="http://gateway.test:8780", claim_code="c",
    request_id="r",
)  # fmt: skip
LEAST_JSON = (
    b'{"scalerName":"lab","agentId":"scaler-0123456789abcdef0123456789abcdef","labels":[],"mandatoryLabels":[],'
    b'"resources":{},"orchestratorUrl":"http://gateway.test:8780","claimCode":"c","requestId":"r"}'
)
DOWN = ScaleDown(
    scaler_name="lab", agent_id=AGENT, reason=ScaleDownReason.JOB_COMPLETE,
    request_id=request_id(EventName.SCALE_DOWN, AGENT),
)  # fmt: skip
DOWN_JSON = (
    b'{"scalerName":"lab","agentId":"scaler-0123456789abcdef0123456789abcdef","reason":"job-complete",'
    b'"requestId":"scaler-0123456789abcdef0123456789abcdef:scale-down"}'
)
GOLDEN = [(FULL, FULL_JSON), (LEAST, LEAST_JSON), (DOWN, DOWN_JSON)]


@pytest.mark.parametrize(("event", "wire"), GOLDEN, ids=["scale-up", "least scale-up", "scale-down"])
def test_an_event_is_these_bytes_and_is_read_back_from_them(event: ScaleUp | ScaleDown, wire: bytes) -> None:
    assert event.to_json() == wire
    assert type(event).model_validate_json(wire) == event


def test_the_names_are_the_wires() -> None:
    assert [name.value for name in EventName] == ["kici.scaler.scale-up", "kici.scaler.scale-down"]
    assert [model.name for model in MODELS] == list(EventName)


@pytest.mark.parametrize("model", MODELS)
def test_the_published_schema_is_the_models(model: type[ScaleUp | ScaleDown]) -> None:
    published = SCHEMAS / f"{model.name.value.removeprefix('kici.scaler.')}.schema.json"

    assert json.loads(published.read_text()) == json_schema(model)


def test_the_published_schema_speaks_of_every_field_and_of_no_null() -> None:
    up = json_schema(ScaleUp)

    assert set(json.loads(FULL_JSON)) == set(up["properties"])
    assert set(up["required"]) < set(json.loads(LEAST_JSON))
    assert "null" not in json.dumps(up)


def test_an_event_of_a_newer_release_is_read() -> None:
    wire = json.dumps(json.loads(DOWN_JSON) | {"since": "2.0"})

    assert ScaleDown.model_validate_json(wire) == DOWN


@pytest.mark.parametrize("lacking", sorted(json_schema(ScaleDown)["required"]))
def test_an_event_that_lacks_a_field_is_refused_without_its_content(lacking: str) -> None:
    wire = {key: value for key, value in json.loads(DOWN_JSON).items() if key != lacking}

    with pytest.raises(ValidationError) as raised:
        ScaleDown.model_validate(wire)

    assert AGENT not in str(raised.value)


def test_a_claim_is_not_shown() -> None:
    assert "the-claim" not in f"{FULL!r} {FULL}"


def test_a_request_id_tells_wishes_apart_and_deliveries_not() -> None:
    ids = [request_id(name, agent) for name in EventName for agent in (AGENT, "scaler-other")]

    assert len(set(ids)) == 4
    assert request_id(EventName.SCALE_UP, AGENT) == ids[0]


@pytest.mark.parametrize("name", ["kici.scaler.scale-up", "kici.", "KICI.anything", "  kici.x"])
def test_a_name_from_outside_may_not_pass_for_one_of_ours(name: str) -> None:
    with pytest.raises(ReservedNameError, match="reserved"):
        refuse_reserved(name)


@pytest.mark.parametrize("name", ["ScaleUp", "kicking", "acme.kici.x", ""])
def test_other_names_pass(name: str) -> None:
    assert refuse_reserved(name) == name
