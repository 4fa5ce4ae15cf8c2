"""Where events go, as people write it in a configuration. Pure: the configuration's checks import it.

temporal:<namespace>/<task-queue>/<WorkflowType>     a workflow is started, and its end is awaited
https://host[:port]/path                             a signed POST
sqs:<queue URL>    sns:<topic ARN>    eventbridge:<bus name or ARN>
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hatchway.events import ReservedNameError, refuse_reserved
from hatchway.urls import UrlError, is_loopback, read_url

_ARN = re.compile(r"arn:aws[a-z-]*:(?P<service>[a-z]+):(?P<region>[a-z0-9-]+):\d{12}:(?P<rest>\S{1,256})")
_BUS = re.compile(r"[A-Za-z0-9._/-]{1,256}")
_TEMPORAL_NAME = re.compile(r"[^\s/\x00-\x1f\x7f][^/\x00-\x1f\x7f]{0,199}")
_AWS_SQS = re.compile(r"(?:sqs\.(?P<region>[a-z0-9-]+)|(?P<older>[a-z0-9-]+)\.queue)\.amazonaws\.com(?:\.cn)?")


class TargetError(ValueError):
    """A target that cannot be used. A sentence without the target's own text: the path in front of it names it."""


@dataclass(frozen=True)
class TemporalTarget:
    namespace: str
    task_queue: str
    workflow_type: str

    def __str__(self) -> str:
        return f"temporal:{self.namespace}/{self.task_queue}/{self.workflow_type}"


@dataclass(frozen=True)
class HttpsTarget:
    url: str
    host: str
    """As it stands in the URL, without brackets: what the certificate must be for."""
    port: int

    def __str__(self) -> str:
        # Some put a token into the path or query, and a page is read by more people than a configuration.
        return f"https://{self.host}" + ("" if self.port == 443 else f":{self.port}")


@dataclass(frozen=True)
class SqsTarget:
    url: str
    region: str | None
    """None: the URL is not AWS's own, and does not say."""

    @property
    def fifo(self) -> bool:
        return self.url.endswith(".fifo")

    def __str__(self) -> str:
        return f"sqs:{self.url}"


@dataclass(frozen=True)
class SnsTarget:
    arn: str
    region: str

    @property
    def fifo(self) -> bool:
        return self.arn.endswith(".fifo")

    def __str__(self) -> str:
        return f"sns:{self.arn}"


@dataclass(frozen=True)
class EventBridgeTarget:
    bus: str
    region: str | None
    """None: a bare name; the region is the target's `region`, else the worker's own."""

    def __str__(self) -> str:
        return f"eventbridge:{self.bus}"


AwsTarget = SqsTarget | SnsTarget | EventBridgeTarget
Target = TemporalTarget | HttpsTarget | AwsTarget


def parse_target(text: str) -> Target:
    """One target as it stands in a configuration. Raises TargetError."""
    if text != text.strip() or not text.isprintable():
        raise TargetError("holds spaces around it, or a character that cannot be seen")
    scheme, colon, rest = text.partition(":")
    match scheme if colon else "":
        case "temporal":
            return _temporal(rest)
        case "https":
            return _https(text)
        case "sqs":
            return _sqs(rest)
        case "sns":
            return _sns(rest)
        case "eventbridge":
            return _eventbridge(rest)
        case "http":
            raise TargetError("is not encrypted: an event carries a claim code, so use https://")
        case _:
            raise TargetError(
                "is none of temporal:<namespace>/<task-queue>/<WorkflowType>, https://…, sqs:<queue URL>, "
                "sns:<topic ARN> and eventbridge:<bus>"
            )


def _temporal(rest: str) -> TemporalTarget:
    parts = rest.split("/")
    if len(parts) != 3 or not all(_TEMPORAL_NAME.fullmatch(part) for part in parts):
        raise TargetError("must be temporal:<namespace>/<task-queue>/<WorkflowType>, all three and no more")
    try:
        for part in parts:
            refuse_reserved(part)
    except ReservedNameError as e:
        raise TargetError(f"holds a name that {e}") from None
    return TemporalTarget(*parts)


def _https(text: str) -> HttpsTarget:
    try:
        url = read_url(text)
    except UrlError as e:
        raise TargetError(str(e)) from None
    if url.has_user:
        raise TargetError("must not hold a user or password: name a `signingSecret` instead")
    if url.fragment:
        raise TargetError("ends in a #fragment, which is never sent")
    if url.port == 0:
        raise TargetError("has port 0, which nobody listens on")
    return HttpsTarget(text, url.host, url.port or 443)


def _sqs(rest: str) -> SqsTarget:
    if not rest.startswith(("https://", "http://")):
        raise TargetError("must be sqs: and the queue's https:// URL")
    try:
        url = read_url(rest)
    except UrlError:
        raise TargetError("is no queue URL that can be read") from None
    if url.scheme != "https" and not is_loopback(url.host):
        raise TargetError("must be sqs: and the queue's https:// URL")
    if url.has_user or url.query or url.fragment or len([part for part in url.path.split("/") if part]) != 2:
        raise TargetError("must be sqs: and the queue's URL, https://sqs.<region>.amazonaws.com/<account>/<name>")
    aws = _AWS_SQS.fullmatch(url.host)
    return SqsTarget(rest, aws and (aws["region"] or aws["older"]))


def _sns(rest: str) -> SnsTarget:
    arn = _ARN.fullmatch(rest)
    if arn is None or arn["service"] != "sns" or ":" in arn["rest"]:
        raise TargetError("must be sns: and the topic's ARN, arn:aws:sns:<region>:<account>:<name>")
    return SnsTarget(rest, arn["region"])


def _eventbridge(rest: str) -> EventBridgeTarget:
    arn = _ARN.fullmatch(rest)
    if arn is not None and arn["service"] == "events" and arn["rest"].startswith("event-bus/"):
        bus, region = arn["rest"].removeprefix("event-bus/"), arn["region"]
    elif _BUS.fullmatch(rest):
        bus, region = rest, None
    else:
        raise TargetError("must be eventbridge: and the bus's name or ARN")
    try:
        refuse_reserved(bus)
    except ReservedNameError as e:
        raise TargetError(f"names a bus that {e}") from None
    return EventBridgeTarget(rest, region)
