"""Targets as people write them: what each is read as, and what is refused, without being quoted."""

from __future__ import annotations

import pytest

from hatchway.backends.event_targets import (
    EventBridgeTarget,
    HttpsTarget,
    SnsTarget,
    SqsTarget,
    Target,
    TargetError,
    TemporalTarget,
    parse_target,
)

SQS = "https://sqs.eu-west-1.amazonaws.com/123456789012/q"
OLDER = "https://eu-west-1.queue.amazonaws.com/1/q"
CHINA = "https://sqs.cn-north-1.amazonaws.com.cn/1/q"
TOPIC = "arn:aws:sns:eu-west-1:123456789012:topic"
BUS = "arn:aws:events:eu-west-1:123456789012:event-bus/ci"

READ: list[tuple[str, Target]] = [
    ("temporal:customer/provisioning/ScaleUp", TemporalTarget("customer", "provisioning", "ScaleUp")),
    ("temporal:acme.a1b2c/gpu queue/Scale Up", TemporalTarget("acme.a1b2c", "gpu queue", "Scale Up")),
    ("https://hooks.example.com", HttpsTarget("https://hooks.example.com", "hooks.example.com", 443)),
    ("https://A.Example.com:8443/a?b=c", HttpsTarget("https://A.Example.com:8443/a?b=c", "a.example.com", 8443)),
    ("https://[2001:db8::1]/a", HttpsTarget("https://[2001:db8::1]/a", "2001:db8::1", 443)),
    (f"sqs:{SQS}", SqsTarget(SQS, "eu-west-1")),
    (f"sqs:{OLDER}", SqsTarget(OLDER, "eu-west-1")),
    (f"sqs:{CHINA}", SqsTarget(CHINA, "cn-north-1")),
    ("sqs:https://vpce-1.example.com/1/q", SqsTarget("https://vpce-1.example.com/1/q", None)),
    ("sqs:http://127.0.0.1:4566/1/q", SqsTarget("http://127.0.0.1:4566/1/q", None)),
    (f"sns:{TOPIC}", SnsTarget(TOPIC, "eu-west-1")),
    ("eventbridge:ci", EventBridgeTarget("ci", None)),
    (f"eventbridge:{BUS}", EventBridgeTarget(BUS, "eu-west-1")),
]  # fmt: skip

REFUSED = [
    ("", "is none of"),
    ("ci", "is none of"),
    ("ftp://example.com", "is none of"),
    ("http://hooks.example.com", "use https://"),
    (" https://hooks.example.com", "spaces around"),
    ("https://hooks.example.com/\u200b", "cannot be seen"),
    ("https://hooks.example.com/\r\nHost: x", "cannot be seen"),
    ("https://", "names no host"),
    ("https://user:hunter2@hooks.example.com", "user or password"),
    ("https://hooks.example.com/#a", "#fragment"),
    ("https://hooks.example.com:0", "port 0"),
    ("https://hooks.example.com:99999", "no URL"),
    ("https://[fe80::1%25eth0]/", "names no host"),
    ("https://127.1/", "no URL"),
    ("https://0x7f000001/", "no URL"),
    ("https://hooks.example.com\\@evil.example/", "no URL"),
    ("https://a b/", "no URL"),
    ("temporal:", "all three"),
    ("temporal:customer/provisioning", "all three"),
    ("temporal:customer/provisioning/a/b", "all three"),
    ("temporal:customer//ScaleUp", "all three"),
    ("temporal:customer/provisioning/kici.scaler.scale-up", "reserved"),
    ("temporal:customer/Kici.queue/ScaleUp", "reserved"),
    ("sqs:q", "https:// URL"),
    ("sqs:http://sqs.eu-west-1.amazonaws.com/1/q", "https:// URL"),
    ("sqs:https://sqs.eu-west-1.amazonaws.com/q", "queue's URL"),
    ("sqs:http://127.evil.example/1/q", "https:// URL"),
    ("sqs:http://127.0.0.1.evil.example/1/q", "https:// URL"),
    ("sqs:http://localhost.evil.example/1/q", "https:// URL"),
    ("sqs:http://127.1/1/q", "no queue URL"),
    ("sqs:http://127.0.0.1\\@evil.example/1/q", "no queue URL"),
    ("sqs:https://[::1/1/q", "no queue URL"),
    ("sqs:https://sqs.eu-west-1.amazonaws.com:99999/1/q", "no queue URL"),
    ("sqs:https:///1/q", "no queue URL"),
    ("sqs:https://key:hunter2@sqs.eu-west-1.amazonaws.com/1/q", "queue's URL"),
    ("sns:topic", "topic's ARN"),
    (f"sns:{TOPIC}:subscription", "topic's ARN"),
    (f"sns:{BUS}", "topic's ARN"),
    ("eventbridge:", "name or ARN"),
    ("eventbridge:a b", "name or ARN"),
    ("eventbridge:kici.scaler", "reserved"),
    (f"eventbridge:{BUS.replace('/ci', '/kici.x')}", "reserved"),
]


@pytest.mark.parametrize(("text", "target"), READ, ids=[text for text, _ in READ])
def test_a_target_is_read(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(("text", "words"), REFUSED, ids=[repr(text) for text, _ in REFUSED])
def test_a_target_that_cannot_be_used_is_refused_without_its_text(text: str, words: str) -> None:
    with pytest.raises(TargetError, match=words) as raised:
        parse_target(text)

    assert "hunter2" not in str(raised.value)


def test_a_target_is_shown_without_what_may_be_a_token() -> None:
    assert str(parse_target("https://hooks.example.com:8443/T0KEN?key=T0KEN")) == "https://hooks.example.com:8443"


@pytest.mark.parametrize(
    ("text", "fifo"), [(f"sqs:{SQS}.fifo", True), (f"sqs:{SQS}", False), (f"sns:{TOPIC}.fifo", True)]
)
def test_a_fifo_is_known_by_its_name(text: str, fifo: bool) -> None:
    target = parse_target(text)

    assert isinstance(target, SqsTarget | SnsTarget)
    assert target.fifo is fifo
