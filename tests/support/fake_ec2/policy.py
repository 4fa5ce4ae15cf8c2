"""What IAM would say of a call: as much of its policy language as docs/aws.md uses, and no more.

For each call the authorizations that EC2 asks IAM for, as AWS's service authorization reference lists them: one for
each resource of a launch, `ec2:CreateTags` for what it tags, `iam:PassRole` for a profile's role.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.support.fake_ec2.wire import Parameters, grouped, numbered

DOCUMENT = Path(__file__).parents[3] / "docs" / "aws.md"
ACCOUNT, ROLE = "123456789012", "ci-agent"
EC2 = f"arn:aws:ec2:eu-central-1:{ACCOUNT}"
INSTALLATION = "hatchway.installation"
Call = tuple[str, Parameters]


@dataclass(frozen=True)
class Asked:
    """One authorization."""

    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)


@functools.cache
def documented_policy(installation: str) -> dict[str, Any]:
    """The policy of docs/aws.md, filled in as its reader is told to."""
    (block,) = re.findall(r"```json\n(\{\n  \"Version\".*?EndAndReadOnlyItsOwn.*?)```", DOCUMENT.read_text(), re.DOTALL)
    policy: dict[str, Any] = json.loads(
        block.replace("INSTALLATION", installation).replace("role/ROLE", f"role/{ROLE}")
    )
    return policy


def authorizations(call: Call, tags_of: Mapping[str, Mapping[str, str]]) -> Iterator[Asked]:
    """`tags_of`: instance id to the tags that it bears."""
    action, ask = call
    match action:
        case "RunInstances":
            yield from _of_launch(ask)
        case "TerminateInstances" | "GetConsoleOutput":
            for instance_id in numbered(ask, "InstanceId") or [ask["InstanceId"]]:
                context = {f"aws:ResourceTag/{key}": value for key, value in tags_of.get(instance_id, {}).items()}
                yield Asked(f"ec2:{action}", f"{EC2}:instance/{instance_id}", context)
        case _:
            yield Asked(f"ec2:{action}", "*")


def _of_launch(ask: Parameters) -> Iterator[Asked]:
    tagged = {
        one["ResourceType"]: {tag["Key"]: tag["Value"] for tag in grouped(one, "Tag")}
        for one in grouped(ask, "TagSpecification")
    }
    for kind in ("instance", "volume"):
        context = {f"aws:RequestTag/{key}": value for key, value in tagged.get(kind, {}).items()}
        yield Asked("ec2:RunInstances", f"{EC2}:{kind}/*", context)
        if kind in tagged:
            yield Asked("ec2:CreateTags", f"{EC2}:{kind}/*", {**context, "ec2:CreateAction": "RunInstances"})
    yield Asked("ec2:RunInstances", f"arn:aws:ec2:eu-central-1::image/{ask['ImageId']}")
    yield Asked("ec2:RunInstances", f"{EC2}:subnet/{ask['SubnetId']}")
    yield Asked("ec2:RunInstances", f"{EC2}:network-interface/*")
    for group in numbered(ask, "SecurityGroupId"):
        yield Asked("ec2:RunInstances", f"{EC2}:security-group/{group}")
    if "IamInstanceProfile.Name" in ask:
        role = f"arn:aws:iam::{ACCOUNT}:role/{ask['IamInstanceProfile.Name']}"
        yield Asked("iam:PassRole", role, {"iam:PassedToService": "ec2.amazonaws.com"})


def allows(policy: Mapping[str, Any], asked: Asked) -> bool:
    return any(_covers(statement, asked) for statement in policy["Statement"])


def _covers(statement: Mapping[str, Any], asked: Asked) -> bool:
    assert statement["Effect"] == "Allow"
    conditions = statement.get("Condition", {})
    assert set(conditions) <= {"StringEquals"}, "this evaluator knows no other"
    return (
        any(fnmatchcase(asked.action, one) for one in _listed(statement["Action"]))
        and any(fnmatchcase(asked.resource, one) for one in _listed(statement["Resource"]))
        and all(asked.context.get(key) == value for key, value in conditions.get("StringEquals", {}).items())
    )


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
