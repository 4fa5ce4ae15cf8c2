"""The typed failures that a provision ends with, and the sentence that a dispatcher shows for each."""

from __future__ import annotations

from datetime import timedelta

from temporalio.exceptions import (
    ApplicationError,
    ApplicationErrorCategory,
    FailureError,
    is_cancelled_exception,
)

from activities.models import AdoptAnswer, AdoptKind, ReserveAnswer, ReserveKind, Slot
from hatchway.errors import DeclineReason, ErrorType
from hatchway.model import EndReason, FollowedEnded, JobResult, ProvisionOutcome, ProvisionState
from hatchway.transitions import BENIGN, SERVED, failure_type
from workflows.evidence import Evidence
from workflows.page import AFTER_FAILURE


def ended(kind: ErrorType, message: str, *details: str) -> ApplicationError:
    """How a workflow of ours fails: typed, final, and without noise where it is nobody's fault."""
    category = ApplicationErrorCategory.BENIGN if kind in BENIGN else ApplicationErrorCategory.UNSPECIFIED
    return ApplicationError(message, *details, type=kind, non_retryable=True, category=category)


def declined(answer: ReserveAnswer, *, waited: timedelta | None) -> ApplicationError:
    """No slot. `waited` is set when the provision stood in the line for as long as it was willing to."""
    if answer.kind is ReserveKind.NO_MATCHING_SCALER:
        return ended(ErrorType.NO_MATCHING_SCALER, answer.message)
    if answer.kind is ReserveKind.ALREADY_ENDED:
        return ended(ErrorType.ALREADY_ENDED, answer.message)
    detail = answer.decline or DeclineReason.AT_CAPACITY
    if waited is not None and detail is DeclineReason.AT_CAPACITY:
        message = f"no slot within {waited.total_seconds():g} s: {answer.message}"
        return ended(ErrorType.DECLINED, message, DeclineReason.WAIT_TIMEOUT)
    return ended(ErrorType.DECLINED, answer.message, detail)


def adoption_refused(answer: AdoptAnswer) -> ApplicationError:
    """What an agent hears that may not be this provision's."""
    match answer.kind:
        case AdoptKind.TEARING_DOWN:
            return ended(ErrorType.TEARING_DOWN, f"this agent is being torn down: {answer.detail}")
        case AdoptKind.ADOPTED_BY_OTHER:
            return ended(
                ErrorType.ADOPTED_BY_OTHER, f"another process, alive at {answer.detail}, has registered as this agent"
            )
        case _:
            return ended(ErrorType.NO_SUCH_PROVISION, "this provision has no row any more")


def not_adoptable(state: ProvisionState) -> ApplicationError:
    """What an agent hears that comes too early, which no honest one does, or too late."""
    late = state in (ProvisionState.TEARING_DOWN, ProvisionState.CLOSED)
    kind = ErrorType.TEARING_DOWN if late else ErrorType.NO_SUCH_PROVISION
    return ended(kind, f"no agent can be adopted while the provision is {state.value}")


def heard(end: BaseException) -> ApplicationError:
    """What whoever waits for the adoption is told of the provision's end."""
    if isinstance(end, ApplicationError):
        return end
    return ended(ErrorType.RELEASED, "the provision was cancelled", EndReason.CANCELLED)


def shown(end: BaseException) -> tuple[str, str | None, str | None]:
    """For the page: how it ended in a few words, with which error, and what is to be done about that."""
    if isinstance(end, ApplicationError):
        return f"failed: {end.type}", end.message, AFTER_FAILURE.get(end.type or "")
    if isinstance(end, FailureError) and not is_cancelled_exception(end):
        return "failed", str(end), None
    return "cancelled", None, None


def served(outcome: ProvisionOutcome) -> str:
    """The same for a provision that completed."""
    known = outcome.result is not JobResult.UNKNOWN
    return f"closed: {outcome.end_reason.value}" + (f", its job {outcome.result.value}" if known else "")


def failed(end: EndReason, evidence: Evidence, slot: Slot | None) -> ApplicationError:
    """The failure for an end that is neither Completed nor Cancelled."""
    return ended(failure_type(end, bool(evidence.adopted_by)), why(end, evidence, slot), end)


def followed(ended_: FollowedEnded) -> ApplicationError:
    """The failure of a provision whose job a warm agent did not bring to its end."""
    end = ended_.end_reason
    message = ended_.error or f"the warm agent {ended_.served_by} that had the job ended: {end.value}"
    return ended(failure_type(end, adopted=True), message, end)


def trouble(end: EndReason, evidence: Evidence, slot: Slot | None) -> str | None:
    """What went wrong, for the page of the teardown; None when the end was asked for."""
    return None if end in SERVED or end is EndReason.CANCELLED else why(end, evidence, slot)


def why(end: EndReason, evidence: Evidence, slot: Slot | None) -> str:
    match end:
        case EndReason.COMPUTE_EXITED:
            return _exited(evidence)
        case EndReason.ADOPTION_TIMEOUT:
            limit = f"within {slot.adoption_timeout.total_seconds():g} s of its spawn" if slot else "in time"
            return (
                f"the agent did not register {limit}: see whether it reaches the gateway{_output(evidence.last_output)}"
            )
        case EndReason.HEARTBEAT_TIMEOUT:
            return "the agent stopped sending heartbeats and was given up"
        case EndReason.MAX_LIFETIME:
            limit = f" of {slot.max_lifetime.total_seconds():g} s" if slot and slot.max_lifetime else ""
            return f"the agent was still at work after its maximum lifetime{limit}"
        case EndReason.SPAWN_FAILED | EndReason.AUTH_REFUSED:
            return evidence.stage_error or end.value
        case _:
            by = f", by {evidence.release.by}" if evidence.release else ""
            return f"released before an agent was adopted: {end.value}{by}"


def _exited(evidence: Evidence) -> str:
    exited = evidence.exit
    code = "an unknown exit code" if exited is None or exited.exit_code is None else f"exit code {exited.exit_code}"
    if evidence.adopted_by:
        return f"the agent's compute ended with {code} while it was at work, without a completion"
    printed = _output(exited.log_tail if exited else "") or ", and it had printed nothing"
    return f"the agent's compute ended with {code} before it registered{printed}"


def _output(tail: str) -> str:
    return f"; its last output:\n{tail}" if tail else ""
