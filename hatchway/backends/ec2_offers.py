"""One attempt's walk through the offers of a label set, and what an earlier attempt's walk may have left.

Of one agent there must be one instance, whichever attempt asked for it. Three things stand for that. The token of an
offer: EC2 itself refuses the second instance of one. The tags: what an earlier attempt was granted is found, and taken.
And patience: EC2 shows late, so an attempt that is not the first waits before it takes what it does not see for never
made. Without it, an offer that was refused a moment ago could be granted beside another one whose answer was lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import structlog

from hatchway.backends.base import Progress, SpawnSpec
from hatchway.backends.ec2_client import Ec2Client
from hatchway.backends.ec2_errors import ENDED, MISMATCH, Ec2Refused, offers_error, tries_next_offer
from hatchway.backends.ec2_instances import Instance, Instances, chosen
from hatchway.backends.ec2_request import Image, Placement, placements, run_instances
from hatchway.config.ec2_schema import Ec2LabelSet
from hatchway.errors import SpawnCode, TransientSpawnError
from hatchway.through_cancel import to_its_end

log = structlog.get_logger(__name__)

TOKENS = 20
"""Of one offer: each attempt of which EC2 remembers that it refused it uses up one. A provision has three attempts, and
one more for each worker that handed one back."""

Looks = Callable[[], AsyncIterator[list[Instance]]]


class Walk:
    """One attempt for one agent."""

    def __init__(
        self,
        client: Ec2Client,
        instances: Instances,
        looks: Looks,
        spec: SpawnSpec,
        ec2: Ec2LabelSet,
        progress: Progress,
    ) -> None:
        """`looks`: at all of the agent's instances, for as long as EC2 may yet come to show something."""
        self._client = client
        self._instances = instances
        self._looks = looks
        self._spec = spec
        self._ec2 = ec2
        self._progress = progress
        self._waited = False
        """Nothing was to be seen of the agent for as long as EC2 may take to show it."""

    async def take(self, image: Image, text: str) -> str:
        """The id of the agent's instance. `text`: its user data.

        Raises SpawnError, and Ec2Unreachable after which a launch may still happen.
        """
        wanted = list(placements(self._ec2))
        # One offer needs no look at first: its token tells. Later its token may be another, if EC2 refused the first.
        if (len(wanted) > 1 or self._spec.asked_before) and (found := await self._earlier()):
            return found
        refusals: list[tuple[str, Ec2Refused]] = []
        for placement in wanted:
            self._progress(f"asking EC2 for {placement}")
            try:
                return await self._asked(placement, image, text)
            except Ec2Refused as e:
                refusals.append((str(placement), e.without(self._spec.secret_values)))
                if not tries_next_offer(e):
                    break
                log.info(
                    "offer refused", agent_id=self._spec.agent_id, scaler=self._spec.scaler.name, offer=str(placement),
                    code=e.code,
                )  # fmt: skip
        raise offers_error(refusals)

    async def _asked(self, placement: Placement, image: Image, text: str) -> str:
        for number in range(TOKENS):
            ask = run_instances(self._spec, self._ec2, image, placement, text, number)
            try:
                # A launch cannot be taken back: whoever cancels looks for what came of it, so it must be over by then.
                # Around this call alone, or the walk would go on to offers that nobody waits for any more.
                answer = await to_its_end(self._client.call("run_instances", **ask))
            except Ec2Refused as e:
                if e.code not in (MISMATCH, ENDED):
                    raise
                if found := await self._shown():
                    return found
                if e.code == ENDED or await self._instances.of_token(ask["ClientToken"]):
                    raise TransientSpawnError(
                        SpawnCode.DAEMON_UNAVAILABLE,
                        f"EC2 says that an earlier attempt made the instance of {self._spec.agent_id}, and does not "
                        "show it yet",
                    ) from None
                # It was refused, and EC2 remembers that as well: nothing came of it, and with it nothing ever will.
            else:
                return str(answer["Instances"][0]["InstanceId"])
        raise TransientSpawnError(
            SpawnCode.DAEMON_UNAVAILABLE, f"EC2 has refused {placement} {TOKENS} times for {self._spec.agent_id}"
        )

    async def _earlier(self) -> str | None:
        """What an earlier attempt was granted. It may be another offer than the first one, which by now might be
        granted beside it."""
        if self._spec.asked_before:
            return await self._shown()
        found = await self._instances.of(self._spec.agent_id)
        return chosen(found) if found else None

    async def _shown(self) -> str | None:
        """What an earlier attempt made, as soon as EC2 shows it."""
        if self._waited:
            found = await self._instances.of(self._spec.agent_id)
            return chosen(found) if found else None
        self._progress("waiting until EC2 shows the instance of an earlier attempt")
        async for found in self._looks():
            if found:
                log.info("instance taken over", agent_id=self._spec.agent_id, instance_id=chosen(found))
                return chosen(found)
        self._waited = True
        return None
