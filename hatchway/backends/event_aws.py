"""Events as messages of SQS, SNS and EventBridge. The SDK blocks, so each target has threads of its own: one whose
endpoint hangs keeps nobody else waiting.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from hatchway.aws import AwsClients, AwsDenied, AwsError, AwsRefused, AwsUnavailable, NoAwsIdentity, aws_errors, not_aws
from hatchway.backends.event_targets import AwsTarget, EventBridgeTarget, SnsTarget, SqsTarget
from hatchway.config.event_schema import ProvisioningTarget
from hatchway.errors import PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from hatchway.events import ScaleDown, ScaleUp
from hatchway.printable import error_code

if TYPE_CHECKING:
    from mypy_boto3_sqs.type_defs import MessageAttributeValueTypeDef

THREADS = 4
"""Of one target; a hung call leaves one after about half a minute."""

SOURCE = "hatchway"
"""EventBridge's word for who speaks."""

Event = ScaleUp | ScaleDown


class AwsDeliveries:
    def __init__(self, clients: AwsClients | None = None) -> None:
        self._clients = clients or AwsClients()
        self._threads: dict[str, ThreadPoolExecutor] = {}

    async def send(self, target: AwsTarget, event: Event, settings: ProvisioningTarget) -> None:
        """Return once the service has taken the event. Raises SpawnError."""
        call: Callable[[], None]
        match target:
            case SqsTarget():
                call = functools.partial(self._to_sqs, target, event, settings)
            case SnsTarget():
                call = functools.partial(self._to_sns, target, event, settings)
            case EventBridgeTarget():
                call = functools.partial(self._to_eventbridge, target, event, settings)
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads_of(str(target)), call)
        except AwsError as e:
            raise _spawn_error(target, e) from None

    def close(self) -> None:
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    def _threads_of(self, name: str) -> ThreadPoolExecutor:
        if name not in self._threads:
            self._threads[name] = ThreadPoolExecutor(THREADS, thread_name_prefix="events")
        return self._threads[name]

    def _to_sqs(self, target: SqsTarget, event: Event, settings: ProvisioningTarget) -> None:
        with aws_errors():
            sqs = self._clients.sqs(settings.region or target.region, settings.endpoint_url or _origin(target))
            attributes = _attributes(event)
            body = event.to_json().decode()
            if target.fifo:
                taken = sqs.send_message(
                    QueueUrl=target.url, MessageBody=body, MessageAttributes=attributes,
                    MessageGroupId=event.agent_id, MessageDeduplicationId=_deduplication(event),
                )  # fmt: skip
            else:
                taken = sqs.send_message(QueueUrl=target.url, MessageBody=body, MessageAttributes=attributes)
            _receipt(taken["MessageId"])

    def _to_sns(self, target: SnsTarget, event: Event, settings: ProvisioningTarget) -> None:
        with aws_errors():
            sns = self._clients.sns(target.region, settings.endpoint_url)
            attributes = _attributes(event)
            body = event.to_json().decode()
            if target.fifo:
                published = sns.publish(
                    TopicArn=target.arn, Message=body, MessageAttributes=attributes,
                    MessageGroupId=event.agent_id, MessageDeduplicationId=_deduplication(event),
                )  # fmt: skip
            else:
                published = sns.publish(TopicArn=target.arn, Message=body, MessageAttributes=attributes)
            _receipt(published["MessageId"])

    def _to_eventbridge(self, target: EventBridgeTarget, event: Event, settings: ProvisioningTarget) -> None:
        with aws_errors():
            events = self._clients.events(target.region or settings.region, settings.endpoint_url)
            answer = events.put_events(
                Entries=[
                    {
                        "EventBusName": target.bus,
                        "Source": SOURCE,
                        "DetailType": event.name.value,
                        "Detail": event.to_json().decode(),
                        "Resources": [],
                    }
                ]
            )
            entry = answer["Entries"][0]
            refused = answer["FailedEntryCount"] or "EventId" not in entry
            if not refused:
                _receipt(entry["EventId"])
        # It answers 200 for an event that it has not taken.
        if refused:
            code = error_code(entry.get("ErrorCode"))
            if code in ("ThrottlingException", "InternalFailure", "InternalException"):
                raise AwsUnavailable(code, f"AWS could not take the event now ({code})")
            raise AwsRefused(code, f"AWS refused the event ({code})")


def _receipt(given: str) -> None:
    """A 200 is no receipt: every web server has one for whatever it is sent, and what was not taken is not told."""
    if not given:
        raise not_aws("no receipt")


def _origin(target: SqsTarget) -> str | None:
    """Where a queue lies that is not AWS's own; None: the SDK knows."""
    return None if target.region else "/".join(target.url.split("/")[:3])


def _attributes(event: Event) -> dict[str, MessageAttributeValueTypeDef]:
    """For filters and logs: what a receiver can know without reading the body."""
    return {
        name: {"DataType": "String", "StringValue": value}
        for name, value in (
            ("event", event.name.value), ("requestId", event.request_id), ("scalerName", event.scaler_name),
        )
    }  # fmt: skip


def _deduplication(event: Event) -> str:
    """A queue that remembers ids for five minutes drops what differs in its claim code only, as it should.

    Hashed: ids may have 128 characters, and a name of ours with its suffix more.
    """
    return hashlib.sha256(event.request_id.encode()).hexdigest()


def _spawn_error(target: AwsTarget, error: AwsError) -> SpawnError:
    words = f"{target}: {error}"
    match error:
        case NoAwsIdentity():
            return TransientSpawnError(SpawnCode.AUTH_DENIED, words)
        case AwsUnavailable():
            return TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, words)
        case AwsDenied():
            return PermanentSpawnError(SpawnCode.AUTH_DENIED, words)
        case _:
            return PermanentSpawnError(SpawnCode.INVALID_SPEC, words)
