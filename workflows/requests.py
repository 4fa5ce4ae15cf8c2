"""Checks what comes in from outside, and says what is wrong with it without repeating it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from hatchway.converter import Unreadable
from hatchway.errors import ErrorType

M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], payloads: Sequence[Any]) -> M:
    """The one payload as `model`. Raises ApplicationError InvalidRequest: a sentence a field, no value of the input.

    Takes all that came: a handler that declares one argument and is sent none, or two, would stop its workflow.
    """
    try:
        return model.model_validate(_only(model, payloads))
    except ValidationError as e:
        raise _invalid(sentences(e)) from None


def addressed(model: type[M], payloads: Sequence[Any], agent_id: str) -> M | None:
    """A signal's payload if it is well-formed and meant for this agent, else None with a warning.

    Workflow ids are per job, agents are not: a late signal for an earlier agent of the same job must do nothing.
    """
    try:
        message = parse(model, payloads)
    except ApplicationError as e:
        workflow.logger.warning("a %s signal was ignored: %s", model.__name__, e.message)
        return None
    if getattr(message, "agent_id", None) != agent_id:
        workflow.logger.warning("a %s signal was ignored: it is for another agent", model.__name__)
        return None
    return message


def _only(model: type[M], payloads: Sequence[Any]) -> Any:
    takes = f"it takes one {model.__name__} as JSON"
    if len(payloads) > 1:
        raise _invalid(f"{len(payloads)} inputs came: {takes}")
    if not payloads or payloads[0] is None:
        raise _invalid(f"no input came: {takes}")
    if isinstance(payloads[0], Unreadable):
        raise _invalid(f"the input cannot be read: {takes}")
    return payloads[0]


def _invalid(message: str) -> ApplicationError:
    return ApplicationError(message, type=ErrorType.INVALID_REQUEST, non_retryable=True)


def sentences(error: ValidationError) -> str:
    """One sentence for each wrong field: where it is and what it should be."""
    return "; ".join(
        f"{_path(e['loc'])}: {_lower_first(e['msg'].removeprefix('Value error, '))}"
        for e in error.errors(include_url=False, include_context=False, include_input=False)
    )


def _path(loc: tuple[int | str, ...]) -> str:
    """`labels.0`, `container.auth.tokenSecret`; pydantic's names of union members say nothing to the sender."""
    return ".".join(str(part) for part in loc if part not in ("str", "EnvSecret", "ContainerSpec")) or "request"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def refuse_timeouts(info: workflow.Info) -> None:
    """Raise ApplicationError InvalidRequest for a start that would end the workflow without its cleanup."""
    set_ones = [
        name
        for name, is_set in (
            ("an execution timeout", info.execution_timeout),
            ("a run timeout", info.run_timeout),
            ("a retry policy", info.retry_policy),
            ("a cron schedule", info.cron_schedule),
        )
        if is_set
    ]
    if set_ones:
        raise _invalid(
            f"start it without {' and '.join(set_ones)}: the server would end it without any cleanup; "
            "use wait_timeout, spawn_timeout, adoption_timeout and max_lifetime of the request instead"
        )
