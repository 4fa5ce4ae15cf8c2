"""A worker process in the middle of a launch, for a test that kills it there: the cloud holds its call."""

from __future__ import annotations

import asyncio
import json
import sys

from hatchway.backends.ec2 import Ec2Backend
from tests.contract.backend import silent
from tests.support.fake_ec2.specs import QUICK, ec2_spec


async def main() -> None:
    order = json.load(sys.stdin)
    spec = ec2_spec(order["scaler"], order["agent_id"], order["env"], order["installation"])
    backend = Ec2Backend(spec.scaler, order["installation"], QUICK)
    await backend.spawn(spec, silent)
    raise AssertionError("the cloud answered: it should have held the call")


if __name__ == "__main__":
    asyncio.run(main())
