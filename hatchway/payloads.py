"""What all payloads have in common: their base, and the types of their fields.

Every model refuses unknown fields and never quotes its input in an error: an input can hold what must not reach a log.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:@-]{1,200}$")]


def _no_option(job_id: str) -> str:
    if job_id.startswith("-") or not job_id.strip("."):
        raise ValueError("must not begin with a dash, nor be dots only: commands would take it for an option or a "
                         "directory")  # fmt: skip
    return job_id


JobId = Annotated[Id, AfterValidator(_no_option)]
"""Of a job or a run. It stands in user data and in environments, where others make arguments and paths of it."""
Label = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]
Labels = Annotated[list[Label], Field(max_length=100)]
"""More than any label set has: a refusal names them all, and must stay a sentence."""
SecretRef = Annotated[str, StringConstraints(pattern=r"^[^:\s]+:[^\s]+$", max_length=500)]
Text = Annotated[str, StringConstraints(max_length=500)]
Timeout = Annotated[timedelta, Field(gt=timedelta(0), le=timedelta(days=7))]


class Payload(BaseModel):
    """Base of everything that crosses a Temporal boundary."""

    model_config = ConfigDict(
        extra="forbid", hide_input_in_errors=True, ser_json_timedelta="float", frozen=True, use_enum_values=False
    )
