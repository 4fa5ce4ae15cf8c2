"""The commands of docs/aws.md, as they stand there, on the example that they name."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from hatchway.model import ProvisionState
from tests.support.fake_ec2.cloud import FakeEc2
from tests.support.namespaces import until
from tests.support.stack import Stack

ROOT = Path(__file__).parents[3]
EXAMPLE = "examples/aws.yaml"


def documented() -> list[tuple[list[str], str]]:
    """The commands of the document's first block, each with what it reads."""
    block = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "aws.md").read_text(), re.DOTALL)[0]
    commands = []
    lines = iter(block.splitlines())
    for line in lines:
        command, here, _ = line.partition("<<'JSON'")
        read = "\n".join(iter(lambda: next(lines), "JSON")) if here else ""
        commands.append((shlex.split(command, comments=True)[1:], read))
    return commands


async def hatchway(stack: Stack, *arguments: str, read: str = "") -> str:
    """What the command prints; it must succeed."""
    environment = {
        **os.environ,
        "DATABASE_URL": stack.database_url,
        "TEMPORAL_ADDRESS": stack.temporal.service_client.config.target_host,
        "TEMPORAL_NAMESPACE": stack.temporal.namespace,
    }
    command = [sys.executable, "-m", "hatchway.cli", *arguments]
    done = await asyncio.to_thread(
        subprocess.run, command, input=read, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


async def test_each_command_does_what_it_says(
    stack_of: Callable[..., AbstractAsyncContextManager[Stack]], cloud: FakeEc2, tmp_path: Path
) -> None:
    async with stack_of("true") as stack:
        file = tmp_path / "aws.yaml"
        example = (ROOT / EXAMPLE).read_text()
        for real, stand_in in {
            "region: eu-central-1": f"region: eu-central-1\n      endpointUrl: {cloud.url}",
            "https://hatchway.internal.example:8780": stack.gateway_url,
            '["/opt/ci/run-job"]': '["/bin/sh", "-c", "echo at work; sleep 600"]',
        }.items():
            assert real in example
            example = example.replace(real, stand_in)
        file.write_text(example)

        said, agent_id = {}, "AGENT"
        for arguments, read in documented():
            filled = [{EXAMPLE: str(file), "AGENT": agent_id}.get(one, one) for one in arguments]
            if arguments[0] == "logs":

                async def printed(command: tuple[str, ...] = tuple(filled)) -> str | None:
                    text = await hatchway(stack, *command)
                    return text if "at work" in text else None

                said["logs"] = await until(printed, what="the agent's output on the console")
            else:
                as_json = [] if arguments[0] == "config" else ["--json"]
                said[arguments[0]] = await hatchway(stack, *filled, *as_json, read=read)
            if arguments[0] == "provision":
                agent_id = json.loads(said["provision"])["agent_id"]
        (machine,) = cloud.live(agent_id)
        shown = json.loads(said["show"])
        await stack.hatchway.cancel("provision/job/build-1")
        await stack.nothing_left()

    assert set(said) == {"config", "provision", "show", "logs"}
    assert shown["state"] == ProvisionState.ACTIVE
    assert shown["compute"]["ref"] == machine.id
    assert shown["compute"]["endpoint"].startswith("eu-central-1")
    assert "at work" in said["logs"]
    assert machine.asked["InstanceMarketOptions.MarketType"] == "spot"
