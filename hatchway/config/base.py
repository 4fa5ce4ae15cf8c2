"""What every model of the configuration file is made with."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel


class ConfigModel(BaseModel):
    model_config = ConfigDict(
        extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, frozen=True,
        hide_input_in_errors=True, serialize_by_alias=True,
    )  # fmt: skip


def _whole(value: Any) -> Any:
    # A bool is an int to Python: `maxAgents: true` would be a cap of one.
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


Whole = Annotated[int, BeforeValidator(_whole)]


def spelled(pattern: str, sentence: str) -> AfterValidator:
    """A text of this form; `sentence` is what is said of any other one."""
    form = re.compile(pattern)

    def check(value: str) -> str:
        if not form.fullmatch(value):
            raise ValueError(sentence)
        return value

    return AfterValidator(check)
