"""Instances that ended by themselves, or that somebody else ended: seen by one look at all of a scaler's."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Container

import structlog

from hatchway.backends.ec2_client import Ec2Client
from hatchway.backends.ec2_errors import Ec2Error, Ec2Refused
from hatchway.backends.ec2_instances import Instance, Instances
from hatchway.backends.ec2_user_data import Printed, printed
from hatchway.backends.errors import log_tail
from hatchway.model import ComputeExit

log = structlog.get_logger(__name__)

POLL_S = 10.0
"""Seconds between two looks: at 1,000 instances on a page, a scaler costs six calls a minute and worker."""
CONSOLES_A_LOOK = 20
"""EC2 shows what has ended for an hour. A worker that starts then must not ask for each one's console."""

BY_ITSELF = "Client.InstanceInitiatedShutdown"
BY_SOMEBODY = "Client.UserInitiatedShutdown"


class Ec2Exits:
    """One watch of one scaler's instances."""

    def __init__(
        self, client: Ec2Client, instances: Instances, scaler: str, ended_by_us: Container[str], poll: float = POLL_S
    ) -> None:
        """`ended_by_us`: ids of instances that this process has terminated; their ends are no news. `poll`: seconds."""
        self._client = client
        self._instances = instances
        self._scaler = scaler
        self._ended_by_us = ended_by_us
        self._poll = poll
        self._told: set[str] = set()

    async def watch(self) -> AsyncGenerator[ComputeExit]:
        """Each agent of which nothing runs any more, once. Raises Ec2Unreachable, Ec2Refused."""
        while True:
            there: set[str] = set()
            consoles = CONSOLES_A_LOOK
            for agent_id, instances in (await self._by_agent()).items():
                there.update(one.id for one in instances)
                last = instances[-1]
                # Of an agent that was made twice, by an offer whose answer never came, the other one may live.
                if last.id in self._told or any(one.runs for one in instances):
                    continue
                self._told.add(last.id)
                if last.reason == BY_SOMEBODY and last.id in self._ended_by_us:
                    continue
                asks = last.reason == BY_ITSELF and consoles > 0
                consoles -= asks
                left = await self._console(last) if asks else Printed("", None)
                yield ComputeExit(agent_id=agent_id, exit_code=left.exit_code, log_tail=_tail(last, left))
            self._told &= there  # what EC2 has forgotten need not be remembered here
            await asyncio.sleep(self._poll * random.uniform(0.9, 1.1))  # noqa: S311 - spread, not secrecy

    async def _by_agent(self) -> dict[str, list[Instance]]:
        found: dict[str, list[Instance]] = defaultdict(list)
        async for instance in self._instances.of_scaler(self._scaler):
            found[instance.agent_id].append(instance)
        return found

    async def _console(self, instance: Instance) -> Printed:
        try:
            return printed(await console(self._client, instance.id))
        except Ec2Error as e:
            # That it has ended is true without it, and must not wait for it.
            log.warning("the console of an ended instance cannot be read", instance_id=instance.id, error=str(e))
            return Printed("", None)


def _tail(instance: Instance, left: Printed) -> str:
    """What the agent printed; where it did not end by itself, why EC2 says that it did."""
    if instance.reason in (BY_ITSELF, ""):
        return log_tail(left.text)
    return log_tail(f"EC2 ended the instance {instance.id}: {instance.reason}")


async def console(client: Ec2Client, instance_id: str) -> str:
    """The last 64 KiB that the instance has printed; empty while EC2 has none. Raises Ec2Unreachable, Ec2Refused."""
    try:
        answer = await client.call("get_console_output", InstanceId=instance_id, Latest=True)
    except Ec2Refused as e:
        if e.code not in ("UnsupportedOperation", "IncorrectInstanceState", "InvalidParameterCombination"):
            raise
        # Older instance types have no live console, and an ended instance none at all: EC2 keeps what it last took.
        answer = await client.call("get_console_output", InstanceId=instance_id)
    return str(answer.get("Output") or "")
