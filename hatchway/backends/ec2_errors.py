"""What EC2's answers mean for a spawn.

The codes are those of the EC2 API's list of errors. A code says what happened, never whether another offer would do
better: that stands in the table too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from hatchway.backends.errors import quoted
from hatchway.errors import HatchwayError, PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from hatchway.printable import error_code

_QUOTED = 300
"""Characters of EC2's own words that are passed on."""
_BLOB = re.compile(r"Encoded authorization failure message:.*", re.S)
"""Some kilobytes that only `sts:DecodeAuthorizationMessage` can read."""

MISMATCH = "IdempotentParameterMismatch"
"""Our own token with other parameters: an earlier attempt of ours asked with it, and was granted it or refused."""
ENDED = "IdempotentInstanceTerminated"
"""What our own token made has been terminated."""

THROTTLE_PAUSE = timedelta(seconds=5)
"""After the SDK has waited and asked again by itself."""


class Ec2Error(HatchwayError):
    """EC2 did not do what it was asked."""


class Ec2Unreachable(Ec2Error):
    """EC2 did not answer in time, or not at all. What was asked of it may still happen."""


class Ec2TagsLost(Ec2Error):
    """An instance of ours is there and bears our tags no more: whoever may end only what bears them may not end it."""


class Ec2Refused(Ec2Error):
    """EC2 answered with an error. `code` is its own, where it can be one."""

    def __init__(
        self, action: str, code: object, text: str, status: int = 400, *, secrets: Iterable[str] = ()
    ) -> None:  # fmt: skip
        self._text = text
        self.said = quoted(_BLOB.sub("", text), _QUOTED, secrets)
        self.code = error_code(code)
        super().__init__(f"EC2 refused {action}: {self.code}: {self.said}")
        self.action = action
        self.status = status

    def without(self, secrets: Iterable[str]) -> Ec2Refused:
        """The same, for whoever has handed these to EC2: what answers there may quote them, in any form."""
        return Ec2Refused(self.action, self.code, self._text, self.status, secrets=secrets)

    @property
    def not_found(self) -> bool:
        return self.code == "InvalidInstanceID.NotFound"


@dataclass(frozen=True)
class _Row:
    codes: re.Pattern[str]
    permanent: bool
    code: SpawnCode
    sentence: str
    other_offer: bool = False
    """Whether the next offer, or the next subnet, may well be granted."""


def _row(
    codes: str, consequence: str, code: SpawnCode, sentence: str, *, other_offer: bool = False
) -> _Row:  # fmt: skip
    return _Row(re.compile(codes), consequence == "permanent", code, sentence, other_offer)


_TABLE = (
    _row(
        r"Insufficient(Instance|Host|ReservedInstance)?Capacity|SpotMaxPriceTooLow|InsufficientCapacityOnOutpost"
        r"|InsufficientFreeAddressesInSubnet|UnfulfillableCapacity",
        "transient",
        SpawnCode.CAPACITY,
        "EC2 has none of the offers now: {said}; list more instance types, zones or an on-demand offer",
        other_offer=True,
    ),
    _row(
        r"Unsupported|UnsupportedOperation|InvalidInstanceType",
        "permanent",
        SpawnCode.INVALID_SPEC,
        "EC2 cannot make such an instance there: {said}",
        other_offer=True,
    ),
    _row(
        r"(Instance|Vcpu|MaxSpotInstanceCount|Volume|VolumeIOPS|Address|NetworkInterface|vCPU)LimitExceeded"
        r"|MaxSpotInstanceCountExceeded|ResourceLimitExceeded|ResourceCountExceeded|.*QuotaExceeded",
        "transient",
        SpawnCode.QUOTA,
        "the account's quota is used up: {said}; ask AWS for a higher one, or lower maxAgents",
        other_offer=True,
    ),
    _row(
        r"RequestLimitExceeded|Throttling(Exception)?|Throttled(Exception)?|RequestThrottled(Exception)?"
        r"|TooManyRequestsException|EC2ThrottledException|SlowDown|RequestResourceCountExceeded",
        "transient",
        SpawnCode.RATE_LIMITED,
        "EC2 limits how often it is asked: {said}",
    ),
    _row(
        r"ExpiredToken(Exception)?|RequestExpired|PendingVerification|CredentialRetrievalError",
        "transient",
        SpawnCode.AUTH_DENIED,
        "the worker's AWS credentials are not good now: {said}",
    ),
    _row(
        r"UnauthorizedOperation|AccessDenied(Exception)?|AuthFailure|InvalidClientTokenId|SignatureDoesNotMatch"
        r"|UnrecognizedClientException|IncompleteSignature|MissingAuthenticationToken|OptInRequired|Blocked"
        r"|InvalidAction|AccountDisabled",
        "permanent",
        SpawnCode.AUTH_DENIED,
        "the worker's AWS identity may not make instances: {said}; docs/aws.md has the policy that it needs",
    ),
    _row(
        r"InvalidAMIID\..*|InvalidAMI.*|AMINotFound|ImageNotFound",
        "permanent",
        SpawnCode.IMAGE_NOT_FOUND,
        "EC2 has no such AMI in this region, or does not share it with this account: {said}",
    ),
    _row(
        r"InternalError|InternalFailure|Unavailable|ServiceUnavailable|ServerInternal|RequestTimeout",
        "transient",
        SpawnCode.DAEMON_UNAVAILABLE,
        "EC2 failed on its side: {said}",
    ),
)

_ARCHITECTURE = re.compile(r"architecture .* does not match|does not match .*architecture", re.I)


def is_about_capacity(code: str) -> bool:
    """Whether another offer may be granted at once, and the same one only later."""
    return any(row.other_offer and row.codes.fullmatch(code) for row in _TABLE)


def tries_next_offer(refused: Ec2Refused) -> bool:
    row = _row_of(refused)
    return row is not None and row.other_offer and not _ARCHITECTURE.search(refused.said)


def ec2_error(refused: Ec2Refused) -> SpawnError:
    """What a refused call means for its spawn. What no row knows is permanent, unless EC2 itself failed."""
    if _ARCHITECTURE.search(refused.said):
        return PermanentSpawnError(
            SpawnCode.WRONG_ARCHITECTURE, f"the AMI is not for this instance type: {refused.said}"
        )
    row = _row_of(refused)
    if row is not None:
        kind = PermanentSpawnError if row.permanent else TransientSpawnError
        if row.code is SpawnCode.RATE_LIMITED:
            return TransientSpawnError(row.code, row.sentence.format(said=_words(refused)), THROTTLE_PAUSE)
        return kind(row.code, row.sentence.format(said=_words(refused)))
    if refused.status >= 500:
        return TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, f"EC2 failed on its side: {_words(refused)}")
    return PermanentSpawnError(SpawnCode.INVALID_SPEC, f"EC2 does not take the label set: {_words(refused)}")


def offers_error(refusals: list[tuple[str, Ec2Refused]]) -> SpawnError:
    """What it means for a spawn that these offers were refused, in this order; the last one ended the walk.

    What one of them may be granted later is tried again, whatever the others were refused for.
    """
    errors = [(offer, ec2_error(refused)) for offer, refused in refusals]
    _, last = errors[-1]
    passing = next((e for _, e in (errors[-1], *errors) if isinstance(e, TransientSpawnError)), None)
    if passing is None:
        return last
    never = "".join(f"; {offer} not later either: {e}" for offer, e in errors if isinstance(e, PermanentSpawnError))
    return TransientSpawnError(passing.code, f"{passing}{never}", passing.retry_after)


def unreachable_error(e: Ec2Unreachable) -> TransientSpawnError:
    """No answer: nothing is known to be wrong with the job, and another attempt finds what this one made."""
    return TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, str(e))


def _words(refused: Ec2Refused) -> str:
    return f"{refused.said} ({refused.code})" if refused.said else refused.code


def _row_of(refused: Ec2Refused) -> _Row | None:
    return next((row for row in _TABLE if row.codes.fullmatch(refused.code)), None)
