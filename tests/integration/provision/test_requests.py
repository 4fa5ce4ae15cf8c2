"""Bad input, whoever sends it: refused at once, in words, and without a word of what was sent."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import datetime, timedelta
from typing import Any

import pytest

from hatchway.dev.temporal import temporal_binary
from hatchway.errors import ErrorType
from tests.support.lab import Lab
from tests.support.namespaces import until

CANARY = "s3cr3t-canary"

BAD: dict[str, tuple[Any, str]] = {
    "nothing": (None, "takes one ProvisionRequest"),
    "a list": ([CANARY], "should be"),
    "a string": (CANARY, "should be"),
    "no labels": ({"job_id": "a"}, "labels: field required"),
    "labels of the wrong kind": ({"labels": CANARY}, "labels:"),
    "an empty label": ({"labels": [""]}, "labels.0:"),
    "more labels than anything has": ({"labels": [CANARY] * 101}, "labels:"),
    "an unknown field": ({"labels": [], "surprise": CANARY}, "surprise: extra inputs are not permitted"),
    "a job id with a space": ({"labels": [], "job_id": f"a {CANARY}"}, "job_id:"),
    "a priority out of range": ({"labels": [], "priority": 9}, "priority:"),
    "a negative timeout": ({"labels": [], "wait_timeout": -1}, "wait_timeout:"),
    "an endless wait": ({"labels": [], "wait_timeout": 10**9}, "wait_timeout:"),
    "a malformed duration": ({"labels": [], "spawn_timeout": CANARY}, "spawn_timeout:"),
    "a container that is neither": ({"labels": [], "container": {}}, "needs either image or dockerfile"),
    "a container that is both": (
        {"labels": [], "container": {"image": "a", "dockerfile": "b"}},
        "needs either image or dockerfile",
    ),
    "an upper-case repository": ({"labels": [], "container": f"reg.local/{CANARY.upper()}"}, "container.image:"),
    "an image with a scheme": ({"labels": [], "container": f"https://reg.local/{CANARY}"}, "container.image:"),
    "a password in clear": (
        {"labels": [], "container": {"image": "a", "auth": {"tokenValue": CANARY}}},
        "rotate the value that was sent here",
    ),
    "a user name in clear": (
        {"labels": [], "container": {"image": "a", "auth": {"usernameValue": CANARY, "tokenSecret": "a:b"}}},
        "rotate the value that was sent here",
    ),
    "an unqualified reference": (
        {"labels": [], "container": {"image": "a", "auth": {"tokenSecret": CANARY}}},
        "container.auth.tokenSecret:",
    ),
    "a half reference": (
        {"labels": [], "container": {"image": "a", "auth": {"tokenSecret": ":b"}}},
        "container.auth.tokenSecret:",
    ),
    "a dockerfile's auth without a registry": (
        {"labels": [], "container": {"dockerfile": "D", "auth": {"tokenSecret": "a:b"}}},
        "auth.registry is required",
    ),
}


@pytest.mark.parametrize(("request_", "says"), BAD.values(), ids=list(BAD))
async def test_a_malformed_request_fails_at_once_in_words_and_without_its_values(
    lab: Lab, request_: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    status, failure = await _start_from_the_command_line(lab, request_)

    assert status == "FAILED"
    assert failure["applicationFailureInfo"]["type"] == ErrorType.INVALID_REQUEST
    assert says in failure["message"]
    assert CANARY.lower() not in json.dumps(failure).lower()
    assert CANARY.lower() not in caplog.text.lower()
    assert lab.cloud.log == []


async def _start_from_the_command_line(lab: Lab, request: Any) -> tuple[str, dict[str, Any]]:
    """`temporal workflow start --input`, as anybody may; the status within 5 s, and the failure."""
    where = ["--address", lab.temporal.service_client.config.target_host, "--namespace", lab.temporal.namespace]
    given = [] if request is None else ["--input", json.dumps(request)]
    await _temporal(
        "workflow", "start", "--type", "ProvisionWorkflow", "--task-queue", "hatchway", "--workflow-id", "bad",
        *given, *where,
    )  # fmt: skip

    async def closed() -> list[dict[str, Any]] | None:
        shown = json.loads(await _temporal("workflow", "show", "--workflow-id", "bad", "--output", "json", *where))
        events: list[dict[str, Any]] = shown["events"]
        return events if "workflowExecutionFailedEventAttributes" in events[-1] else None

    events = await until(closed)
    first, last = events[0], events[-1]
    # By the clock of the server: the command line alone takes seconds on a busy machine.
    assert _moment(last["eventTime"]) - _moment(first["eventTime"]) <= timedelta(seconds=5)
    return "FAILED", last["workflowExecutionFailedEventAttributes"]["failure"]


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


async def _temporal(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(temporal_binary()), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.parametrize(
    ("auth", "says"),
    [
        ({"tokenSecret": "nowhere:token"}, "nowhere"),
        ({"tokenSecret": "vault:missing"}, "vault:missing"),
        ({"tokenSecret": "other:token"}, "other:token"),
        ({"tokenSecret": "vault:token", "registry": "elsewhere.example"}, "auth.registry"),
        ({}, "tokenSecret is required"),
    ],
    ids=["unknown context", "missing secret", "not for that host", "registry differs from the image's", "no token"],
)
async def test_a_reference_that_cannot_be_served_fails_before_anything_is_spawned(
    lab: Lab, auth: dict[str, str], says: str
) -> None:
    lab.environ["HATCHWAY_SECRET_TOKEN"] = CANARY
    await lab.apply({
        "version": 1,
        "secrets": {
            "contexts": {
                "vault": {"type": "env", "registries": ["reg.local:5000"]},
                "other": {"type": "env", "registries": ["other.example"]},
            }
        },
        "scalers": [
            {"name": "laptop", "type": "bare-metal", "maxAgents": 1, "labelSets": [{"labels": ["linux"]}]},
        ],
    })  # fmt: skip
    started = await lab.provision(container={"image": "reg.local:5000/team/app:1", "auth": auth})

    failure = await lab.failure(started)

    assert failure.error_type == ErrorType.AUTH_REFUSED
    assert says in str(failure)
    assert CANARY not in str(failure)
    assert not [1 for what, *_ in lab.cloud.log if what == "created"]
    await lab.nothing_left()
