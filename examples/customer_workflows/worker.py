"""The customer's worker: `python -m examples.customer_workflows.worker --help`."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from examples.customer_workflows import workflows
from examples.customer_workflows.activities import ProvisioningActivities
from examples.customer_workflows.machines import Machines


def worker(client: Client, task_queue: str, activities: ProvisioningActivities) -> Worker:
    return Worker(
        client,
        task_queue=task_queue,
        workflows=workflows.ALL,
        activities=[activities.boot, activities.delete],
    )


async def serve(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    environment = {"HATCHWAY_AGENT_COMMAND": json.dumps(arguments.command)} if arguments.command else {}
    machines = Machines(arguments.machines, environment)
    keys = [path.read_text().strip() for path in arguments.claim_key]
    client = await Client.connect(arguments.address, namespace=arguments.namespace)
    async with worker(client, arguments.task_queue, ProvisioningActivities(machines, keys)):
        print(f"serving {arguments.task_queue} in {arguments.namespace}", flush=True)
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Boots an agent for each scale-up event, as a process of this host.")
    parser.add_argument("--address", default="localhost:7233")
    parser.add_argument("--namespace", default="customer")
    parser.add_argument("--task-queue", default="provisioning")
    parser.add_argument("--machines", type=Path, required=True, help="a directory for the machines' files")
    parser.add_argument("--claim-key", type=Path, required=True, action="append", help="file with the private key")
    parser.add_argument("command", nargs="*", help="what each agent runs; nothing: it serves until it is drained")
    asyncio.run(serve(parser.parse_args()))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
