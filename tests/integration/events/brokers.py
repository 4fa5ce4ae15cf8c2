"""Where `sqs:`, `sns:` and `eventbridge:` targets lead: to a queue of the customer's, on a stand-in of AWS."""

from __future__ import annotations

import json
import uuid
from typing import Any

import boto3

from tests.support.aws import REGION

KINDS = ("sqs", "sns", "eventbridge")


class Broker:
    """One target with the queue behind it. What Hatchway sends to can be taken away and made again, under its name."""

    def __init__(self, kind: str, endpoint: str) -> None:
        self._kind = kind
        self._endpoint = endpoint
        self._name = f"n-{uuid.uuid4().hex[:12]}"
        self._sqs = self._client("sqs")
        self._topic = ""
        self.make()

    @property
    def target(self) -> dict[str, Any]:
        match self._kind:
            case "sqs":
                return {"scaleUp": f"sqs:{self._url}", "region": REGION}
            case "sns":
                return {"scaleUp": f"sns:{self._topic}", "endpointUrl": self._endpoint}
            case _:
                return {"scaleUp": f"eventbridge:{self._name}", "region": REGION, "endpointUrl": self._endpoint}

    def make(self) -> None:
        self._url = self._sqs.create_queue(QueueName=self._name)["QueueUrl"]
        attributes = self._sqs.get_queue_attributes(QueueUrl=self._url, AttributeNames=["QueueArn"])["Attributes"]
        if self._kind == "sns":
            sns = self._client("sns")
            self._topic = sns.create_topic(Name=self._name)["TopicArn"]
            sns.subscribe(TopicArn=self._topic, Protocol="sqs", Endpoint=attributes["QueueArn"])
        elif self._kind == "eventbridge":
            events = self._client("events")
            events.create_event_bus(Name=self._name)
            pattern = json.dumps({"source": ["hatchway"], "detail-type": [{"prefix": "kici.scaler."}]})
            events.put_rule(Name=self._name, EventBusName=self._name, EventPattern=pattern)
            target = {"Id": "queue", "Arn": attributes["QueueArn"]}
            events.put_targets(Rule=self._name, EventBusName=self._name, Targets=[target])

    def remove(self) -> None:
        match self._kind:
            case "sqs":
                self._sqs.delete_queue(QueueUrl=self._url)
            case "sns":
                self._client("sns").delete_topic(TopicArn=self._topic)
            case _:
                events = self._client("events")
                events.remove_targets(Rule=self._name, EventBusName=self._name, Ids=["queue"])
                events.delete_rule(Name=self._name, EventBusName=self._name)
                events.delete_event_bus(Name=self._name)

    def arrived(self) -> list[bytes]:
        """The events that are there now; they are taken out of the queue."""
        found = self._sqs.receive_message(QueueUrl=self._url, MaxNumberOfMessages=10).get("Messages", [])
        for message in found:
            self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
        return [self._event(message["Body"]) for message in found]

    def arrived_at_one_who_fails(self) -> list[bytes]:
        """The same, and the queue keeps them: whoever took them died before the end."""
        found = self._sqs.receive_message(QueueUrl=self._url, MaxNumberOfMessages=10, VisibilityTimeout=0)
        return [self._event(message["Body"]) for message in found.get("Messages", [])]

    def _event(self, body: str) -> bytes:
        """Out of what the service has put around it."""
        match self._kind:
            case "sqs":
                return body.encode()
            case "sns":
                return str(json.loads(body)["Message"]).encode()
            case _:
                return json.dumps(json.loads(body)["detail"], separators=(",", ":")).encode()

    def _client(self, service: Any) -> Any:
        return boto3.client(service, region_name=REGION, endpoint_url=self._endpoint)
