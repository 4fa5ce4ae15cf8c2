"""The events that ask a customer's own provisioning for an agent, and that take it away. Pure: no I/O.

    kici.scaler.scale-up      ScaleUp      an agent is wanted: boot one with these labels and this claim code
    kici.scaler.scale-down    ScaleDown    the agent is not wanted any more: delete it, or find that it is gone

JSON, camelCase, the same for every kind of target; `docs/events/*.schema.json` are these models. Events come at least
once, and may come late or out of order: `requestId` is the same for every delivery of the same wish.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from hatchway.model import ScaleDownReason

RESERVED_PREFIX = "kici."
"""Of event names. Refused to every name that comes from outside, so that nothing else can pass for one of ours."""


class EventName(StrEnum):
    SCALE_UP = "kici.scaler.scale-up"
    SCALE_DOWN = "kici.scaler.scale-down"


class ReservedNameError(ValueError):
    """A name from outside begins like one of ours. A sentence without the name: the path in front of it names it."""


def refuse_reserved(name: str) -> str:
    """`name`, which came from outside. Raises ReservedNameError; letter case does not matter, spaces do not hide it."""
    if name.strip().lower().startswith(RESERVED_PREFIX):
        raise ReservedNameError(f"begins with {RESERVED_PREFIX}, which is reserved for Hatchway's own events")
    return name


def request_id(event: EventName, agent_id: str) -> str:
    """The same for every delivery of this event for this agent, by whichever worker, after whatever was lost."""
    return f"{agent_id}:{event.value.removeprefix('kici.scaler.')}"


AgentId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}$")]


_WIRE = ConfigDict(
    alias_generator=to_camel,
    validate_by_name=True,
    validate_by_alias=True,
    serialize_by_alias=True,
    frozen=True,
    hide_input_in_errors=True,
    extra="ignore",  # a customer's side of an older release reads the events of a newer one
)


class _Event(BaseModel):
    model_config = _WIRE

    name: ClassVar[EventName]

    def to_json(self) -> bytes:
        """The body as every target gets it: compact, keys in the order of the schema, nothing that is not set."""
        return self.model_dump_json(exclude_none=True).encode()


class Resources(BaseModel):
    """What the agent may use; what is absent was not asked for."""

    model_config = _WIRE

    cpus: Annotated[float, Field(gt=0)] | None = None
    """CPUs; half a one is 0.5."""
    mem_bytes: Annotated[int, Field(gt=0)] | None = None


class ScaleUp(_Event):
    """An agent is wanted."""

    name: ClassVar[EventName] = EventName.SCALE_UP

    scaler_name: str
    agent_id: AgentId
    labels: list[str]
    """All that the agent has to bear, `KICI_LABELS`; those that are injected included."""
    mandatory_labels: list[str] = []
    resources: Resources = Field(default_factory=Resources)
    orchestrator_url: str
    """`KICI_ORCHESTRATOR_URL`: one address, or a comma list."""
    claim_code: Annotated[str, Field(repr=False)]
    """`KICI_SCALER_CLAIM_CODE`, or, where the target has a `claimKey`, that code sealed: `sealed.v1.…`."""
    job_id: str | None = None
    """The only job that the agent may run; absent where it is made ahead of jobs."""
    request_id: str


class ScaleDown(_Event):
    """The agent is not wanted any more. One that is not there, or never was, is gone: that is a success."""

    name: ClassVar[EventName] = EventName.SCALE_DOWN

    scaler_name: str
    agent_id: AgentId
    reason: ScaleDownReason
    request_id: str


MODELS: tuple[type[ScaleUp | ScaleDown], ...] = (ScaleUp, ScaleDown)


def json_schema(model: type[ScaleUp | ScaleDown]) -> dict[str, Any]:
    """The event's JSON Schema, as `docs/events/` has it: of what is sent, where nothing is null."""
    schema = model.model_json_schema(by_alias=True)
    described = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"{model.name.value}.schema.json"}
    plain: dict[str, Any] = _plain(schema)
    return described | plain


def _plain(node: Any) -> Any:
    """Without the titles and nulls that the generator adds: what is not set is left out of an event."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "properties" in node:
        fields = {name: _plain(field) for name, field in node["properties"].items()}
        return {key: fields if key == "properties" else _plain(value) for key, value in node.items() if key != "title"}
    choices = [choice for choice in node.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        node = choices[0] | {key: value for key, value in node.items() if key not in ("anyOf", "default")}
    return {key: _plain(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
