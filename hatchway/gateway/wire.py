"""The bodies that agents send and get. Unknown fields are ignored: an agent in an image may be newer than this."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from hatchway.gateway.credentials import ClaimCode, Nonce
from hatchway.model import AdoptedSpec, Id, JobResult


class Body(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True, frozen=True)


class RedeemCall(Body):
    claim_code: ClaimCode
    nonce: Nonce


class RedeemAnswer(Body):
    agent_id: str
    token: str = Field(repr=False)
    heartbeat_interval_s: float


class RegisterCall(Body):
    registration_id: Id
    """Random, one per agent process."""
    agent_version: Annotated[str, Field(max_length=200)] = ""


class RegisterAnswer(AdoptedSpec):
    heartbeat_interval_s: float
    heartbeat_timeout_s: float


class HeartbeatCall(Body):
    registration_id: Id
    busy: bool = False
    """For people who read a trace. Nothing is decided on it: an agent's word on its own idleness lags."""


class BoundJob(Body):
    job_id: str
    run_id: str | None = None


class HeartbeatAnswer(Body):
    drain: bool
    next_in_s: float
    job: BoundJob | None = None


class CompleteCall(Body):
    registration_id: Id
    result: JobResult
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None


class CompleteAnswer(Body):
    result: JobResult
    """The result on record: the first one that was committed."""


class Refusal(Body):
    error: str
    message: str
