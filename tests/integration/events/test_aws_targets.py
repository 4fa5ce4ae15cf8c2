"""`sqs:`, `sns:` and `eventbridge:` targets, on a stand-in of AWS and on servers that refuse."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from temporalio.client import Client

from hatchway import aws
from hatchway.backends import event
from hatchway.backends.base import Accepted
from hatchway.backends.event import EventBackend
from hatchway.errors import DestroyError, PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.events import ScaleDown, ScaleUp
from hatchway.metrics import Metrics
from hatchway.model import ScaleDownReason
from hatchway.sealed_claims import new_claim_keys, open_claim
from tests.support.aws import IDENTITY, REGION, Refusing, aws_stand_in
from tests.support.customer import CLAIM, FixedConfig, event_scaler, facts_of, fresh_agent_id, silent, spec_of
from tests.support.temporal_fixtures import TemporalServer


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with aws_stand_in() as address:
        yield address


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(event, "PAUSE_S", 0.01)


@pytest.fixture
def own(temporal: TemporalServer) -> Client:
    return temporal.client


class Queue:
    """A queue of the stand-in's, and what has arrived there."""

    def __init__(self, endpoint: str, *, fifo: bool = False) -> None:
        self.endpoint = endpoint
        self.sqs = self.client("sqs")
        name = f"q-{uuid.uuid4().hex[:12]}" + (".fifo" if fifo else "")
        attributes: Any = {"FifoQueue": "true"} if fifo else {}
        self.url = self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        self.arn = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])["Attributes"][
            "QueueArn"
        ]

    def client(self, service: Any) -> Any:
        return boto3.client(service, region_name=REGION, endpoint_url=self.endpoint)

    def take(self) -> list[dict[str, Any]]:
        """Everything that is there now, in order."""
        answer = self.sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
        return list(answer.get("Messages", []))


def backend_of(own: Client, *targets: Any) -> tuple[EventBackend, FixedConfig]:
    config = FixedConfig.of(event_scaler(*targets))
    return EventBackend("customers", own, config, Metrics.of(own)), config


def to_sqs(queue: Queue, **settings: Any) -> tuple[dict[str, Any], Callable[[dict[str, Any]], str]]:
    return {"scaleUp": f"sqs:{queue.url}", "region": REGION, **settings}, lambda message: str(message["Body"])


def to_sns(queue: Queue, **settings: Any) -> tuple[dict[str, Any], Callable[[dict[str, Any]], str]]:
    sns = queue.client("sns")
    topic = sns.create_topic(Name=f"t-{uuid.uuid4().hex[:12]}")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
    target = {"scaleUp": f"sns:{topic}", "endpointUrl": queue.endpoint, **settings}
    return target, lambda message: str(json.loads(message["Body"])["Message"])


def to_eventbridge(queue: Queue, **settings: Any) -> tuple[dict[str, Any], Callable[[dict[str, Any]], str]]:
    events, bus = queue.client("events"), f"b-{uuid.uuid4().hex[:12]}"
    events.create_event_bus(Name=bus)
    pattern = json.dumps({"source": ["hatchway"], "detail-type": [{"prefix": "kici.scaler."}]})
    events.put_rule(Name=f"r-{bus}", EventBusName=bus, EventPattern=pattern)
    events.put_targets(Rule=f"r-{bus}", EventBusName=bus, Targets=[{"Id": "q", "Arn": queue.arn}])
    target = {"scaleUp": f"eventbridge:{bus}", "region": REGION, "endpointUrl": queue.endpoint, **settings}
    return target, lambda message: json.dumps(json.loads(message["Body"])["detail"])


KINDS = {"sqs": to_sqs, "sns": to_sns, "eventbridge": to_eventbridge}


@pytest.mark.parametrize("kind", KINDS)
async def test_events_arrive_whole(own: Client, endpoint: str, kind: str) -> None:
    queue = Queue(endpoint)
    target, body_of = KINDS[kind](queue)
    backend, config = backend_of(own, target)
    agent_id = fresh_agent_id()

    ref = await backend.spawn(spec_of(config.scaler, agent_id, job_id="job-1"), silent)
    gone = await backend.destroy(agent_id, facts_of(config.scaler), ScaleDownReason.IDLE)

    assert ref.host_id == "scaler.customers"
    assert gone == Accepted()
    bodies = sorted((body_of(message) for message in queue.take()), key=lambda body: "reason" in body)
    up, down = ScaleUp.model_validate_json(bodies[0]), ScaleDown.model_validate_json(bodies[1])
    assert (up.agent_id, up.claim_code, up.job_id) == (agent_id, CLAIM, "job-1")
    assert (down.agent_id, down.reason) == (agent_id, ScaleDownReason.IDLE)
    assert await backend.find(agent_id) is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_claim_is_sealed_where_the_target_has_a_key(own: Client, endpoint: str, kind: str) -> None:
    private, public = new_claim_keys()
    queue = Queue(endpoint)
    target, body_of = KINDS[kind](queue, claimKey=public)
    backend, config = backend_of(own, target)
    agent_id = fresh_agent_id()

    await backend.spawn(spec_of(config.scaler, agent_id), silent)

    (message,) = queue.take()
    assert CLAIM not in json.dumps(message)
    assert open_claim(ScaleUp.model_validate_json(body_of(message)).claim_code, private, agent_id) == CLAIM


async def test_a_message_says_what_it_is_without_being_opened(own: Client, endpoint: str) -> None:
    queue = Queue(endpoint)
    backend, config = backend_of(own, to_sqs(queue)[0])
    agent_id = fresh_agent_id()

    await backend.spawn(spec_of(config.scaler, agent_id), silent)

    (message,) = queue.take()
    assert {name: value["StringValue"] for name, value in message["MessageAttributes"].items()} == {
        "event": "kici.scaler.scale-up", "requestId": f"{agent_id}:scale-up", "scalerName": "customers",
    }  # fmt: skip


@pytest.mark.scenario("S01", "S22")
async def test_an_attempt_whose_reply_was_lost_is_told_again_recognisably(own: Client, endpoint: str) -> None:
    queue = Queue(endpoint)
    backend, config = backend_of(own, to_sqs(queue)[0])
    agent_id = fresh_agent_id()

    refs = {await backend.spawn(spec_of(config.scaler, agent_id), silent) for _ in range(2)}

    assert len(refs) == 1
    assert {json.loads(message["Body"])["requestId"] for message in queue.take()} == {f"{agent_id}:scale-up"}


async def test_a_fifo_queue_keeps_the_order_of_an_agent_and_drops_what_is_told_twice(
    own: Client, endpoint: str
) -> None:
    queue = Queue(endpoint, fifo=True)
    backend, config = backend_of(own, to_sqs(queue)[0])
    agent_id = fresh_agent_id()

    for claim in ("first-claim", "second-claim"):
        await backend.spawn(spec_of(config.scaler, agent_id, claim=claim), silent)
    for _ in range(2):
        await backend.destroy(agent_id, facts_of(config.scaler), ScaleDownReason.SHUTDOWN)

    bodies = [json.loads(message["Body"]) for message in queue.take()]
    assert [body["requestId"] for body in bodies] == [f"{agent_id}:scale-up", f"{agent_id}:scale-down"]


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ({"scaleUp": "sqs:{endpoint}/123456789012/nobody-made-this", "region": REGION}, SpawnCode.INVALID_SPEC),
        (
            {"scaleUp": f"sns:arn:aws:sns:{REGION}:123456789012:nobody-made-this", "endpointUrl": "{endpoint}"},
            SpawnCode.INVALID_SPEC,
        ),
    ],
    ids=["sqs", "sns"],
)
async def test_a_target_that_does_not_exist_fails_at_once(
    own: Client, endpoint: str, target: dict[str, str], code: SpawnCode
) -> None:
    filled = {key: value.replace("{endpoint}", endpoint) for key, value in target.items()}
    backend, config = backend_of(own, filled)

    with pytest.raises(PermanentSpawnError, match="AWS refused") as raised:
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert raised.value.code is code
    assert CLAIM not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "word", "error", "code"),
    [
        (400, "AccessDeniedException", PermanentSpawnError, SpawnCode.AUTH_DENIED),
        (400, "InvalidClientTokenId", PermanentSpawnError, SpawnCode.AUTH_DENIED),
        (400, "ThrottlingException", TransientSpawnError, SpawnCode.DAEMON_UNAVAILABLE),
        (503, "ServiceUnavailable", TransientSpawnError, SpawnCode.DAEMON_UNAVAILABLE),
    ],
)
async def test_a_refusal_is_typed_by_what_it_means(
    own: Client, monkeypatch: pytest.MonkeyPatch, status: int, word: str, error: type[Exception], code: SpawnCode
) -> None:
    monkeypatch.setattr(aws, "ATTEMPTS", 1)
    with Refusing(status, word, message=CLAIM) as refusing:
        target = {"scaleUp": f"sqs:{refusing.endpoint}/1/q", "region": REGION}
        backend, config = backend_of(own, target)

        with pytest.raises(error) as raised:
            await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert getattr(raised.value, "code", None) is code
    assert CLAIM not in str(raised.value)


@pytest.mark.parametrize(
    ("entry", "error"), [("InternalFailure", TransientSpawnError), ("MalformedDetail", PermanentSpawnError)]
)
async def test_a_200_that_says_no_is_no_delivery(own: Client, entry: str, error: type[Exception]) -> None:
    """EventBridge answers 200 for an event that it has not taken."""
    said = json.dumps({"FailedEntryCount": 1, "Entries": [{"ErrorCode": entry, "ErrorMessage": CLAIM}]})
    with Refusing(200, "", times=0, then=said) as refusing:
        target = {"scaleUp": "eventbridge:bus", "region": REGION, "endpointUrl": refusing.endpoint}
        backend, config = backend_of(own, target)

        with pytest.raises(error, match=entry) as raised:
            await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)
        with pytest.raises(DestroyError, match=entry):
            await backend.destroy(fresh_agent_id(), facts_of(config.scaler), ScaleDownReason.IDLE)

    assert CLAIM not in str(raised.value)


NO_RECEIPT = {
    "a proxy's page": "<html><body>You sent Authorization: AWS4-HMAC-SHA256 Credential=AKIA</body></html>",
    "an empty object": "{}",
    "a list": "[1]",
    "nothing": "",
    "an empty receipt": json.dumps({"MessageId": "", "FailedEntryCount": 0, "Entries": [{"EventId": ""}]}),
    "no receipt": json.dumps({"MessageId": None, "FailedEntryCount": 0, "Entries": []}),
}


@pytest.mark.parametrize("said", NO_RECEIPT.values(), ids=NO_RECEIPT)
@pytest.mark.parametrize("scheme", ["sqs", "sns", "eventbridge"])
async def test_a_200_without_the_services_receipt_is_no_delivery(
    own: Client, monkeypatch: pytest.MonkeyPatch, scheme: str, said: str
) -> None:
    """As of a web server that a wrong endpoint leads to: the slot would be free, and the machine would stand."""
    monkeypatch.setattr(aws, "ATTEMPTS", 1)
    with Refusing(200, "", times=0, then=said) as anything:
        target = {
            "sqs": {"scaleUp": f"sqs:{anything.endpoint}/1/q", "region": REGION},
            "sns": {"scaleUp": f"sns:arn:aws:sns:{REGION}:123456789012:t", "endpointUrl": anything.endpoint},
            "eventbridge": {"scaleUp": "eventbridge:bus", "region": REGION, "endpointUrl": anything.endpoint},
        }[scheme]
        backend, config = backend_of(own, target)

        with pytest.raises(TransientSpawnError, match="not AWS") as raised:
            await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)
        with pytest.raises(DestroyError, match="not AWS"):
            await backend.destroy(fresh_agent_id(), facts_of(config.scaler), ScaleDownReason.IDLE)

    assert raised.value.code is SpawnCode.DAEMON_UNAVAILABLE
    assert "Credential" not in str(raised.value)


@pytest.mark.scenario("S07")
async def test_an_endpoint_that_hangs_keeps_no_other_target_and_no_other_agent_waiting(
    own: Client, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hanging.append(writer)

    hanging: list[asyncio.StreamWriter] = []
    monkeypatch.setattr(aws, "READ_S", 60)
    monkeypatch.setattr(aws, "ATTEMPTS", 1)
    monkeypatch.setattr(event, "TRIES", 1)
    server = await asyncio.start_server(never, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    queue = Queue(endpoint)
    hangs = {"scaleUp": f"sqs:http://127.0.0.1:{port}/1/q", "region": REGION}
    backend, config = backend_of(own, hangs, to_sqs(queue)[0])
    agents = [fresh_agent_id() for _ in range(6)]

    spawns = [asyncio.create_task(backend.spawn(spec_of(config.scaler, agent), silent)) for agent in agents]
    begun, arrived = time.monotonic(), set[str]()
    while len(arrived) < len(agents) and time.monotonic() - begun < 30:
        arrived |= {json.loads(message["Body"])["agentId"] for message in await asyncio.to_thread(queue.take)}
    waiting = [spawn for spawn in spawns if not spawn.done()]
    server.close()
    for writer in hanging:
        writer.close()
    ended = await asyncio.gather(*spawns, return_exceptions=True)

    assert arrived == set(agents)
    assert waiting, "the target that hangs was not even waited for"
    assert all(isinstance(end, TransientSpawnError) for end in ended)
