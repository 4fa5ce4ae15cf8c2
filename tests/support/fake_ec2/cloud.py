"""A small EC2: instances that boot their user data as local processes, and every fault that a client must survive.

Better than a mock in what counts here: client tokens are honoured, states take time, new instances show late and their
tags later, replies are lost after the effect, pages are short. All times are real and short.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.support.fake_ec2.images import IMAGES, Volume, volumes_of
from tests.support.fake_ec2.machine import Inside
from tests.support.fake_ec2.mischief import Mischief
from tests.support.fake_ec2.policy import INSTALLATION, allows, authorizations, documented_policy
from tests.support.fake_ec2.wire import Answer, Lost, Parameters, Refused, grouped, numbered, serving

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
AGENT_ID = "kici-agent-id"
EFFECTS = frozenset({"RunInstances", "TerminateInstances"})


@dataclass
class Machine:
    id: str
    token: str
    asked: Parameters
    tags: dict[str, str]
    launched: datetime
    shown_at: float
    tagged_at: float
    boots_at: float
    inside: Inside | None
    volumes: list[Volume] = field(default_factory=list)
    state: str = "pending"
    reason: tuple[str, str] | None = None
    goes_at: float | None = None
    fence_at: float | None = None

    @property
    def agent_id(self) -> str:
        return self.tags.get(AGENT_ID, "")

    @property
    def lives(self) -> bool:
        return self.state in ("pending", "running")

    def described(self) -> Answer:
        reason = {"code": self.reason[0], "message": self.reason[1]} if self.reason else None
        return {
            "instanceId": self.id,
            "imageId": self.asked["ImageId"],
            "instanceState": {"code": CODES[self.state], "name": self.state},
            "stateReason": reason,
            "instanceType": self.asked["InstanceType"],
            "clientToken": self.token,
            "launchTime": self.launched.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "subnetId": self.asked["SubnetId"],
            "tagSet": [{"key": key, "value": value} for key, value in self.tags.items()],
        }


@dataclass
class FakeEc2:
    """The cloud. What a test asks of it is asked directly; what a backend does comes through its door."""

    directory: Path
    boots: bool = True
    """Whether user data is run. Without it instances come and go, and nothing runs in them."""
    mischief: Mischief = field(default_factory=Mischief)
    url: str = ""
    machines: dict[str, Machine] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    """Action to how often it was asked, whatever came of it."""
    faults: Counter[str] = field(default_factory=Counter)
    """How often it was mean, by how."""
    log: list[tuple[str, Parameters]] = field(default_factory=list)
    most: int = 0
    """Instances that were there at once."""
    made: Callable[[Machine], None] | None = None
    """Told of each new instance, in the thread of its launch."""
    cut: bool = False
    """Nobody is answered."""
    held: Callable[[str, Parameters, str], None] | None = None
    """Called before and after each call, with `before` or `after`; it may block, to stop a client at a point."""
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _pages: dict[str, list[str]] = field(default_factory=dict)
    _refused: dict[str, Parameters] = field(default_factory=dict)
    """Token to what was asked with it and refused."""

    # ── what a test asks ────────────────────────────────────────────────────────────────────────────────────────

    def of(self, agent_id: str) -> list[Machine]:
        """Every instance that was ever made for an agent."""
        with self._lock:
            return [machine for machine in self.machines.values() if machine.agent_id == agent_id]

    def live(self, agent_id: str | None = None) -> list[Machine]:
        with self._lock:
            return [m for m in self.machines.values() if m.lives and agent_id in (None, m.agent_id)]

    def there(self) -> list[Machine]:
        with self._lock:
            return [m for m in self.machines.values() if m.state != "terminated"]

    def volumes_left(self) -> list[str]:
        """Those that cost on, though the instance that they were made for is terminated."""
        with self._lock:
            ended = [machine for machine in self.machines.values() if machine.state == "terminated"]
            return [f"{m.id} {one.device}" for m in ended for one in m.volumes if not one.goes_with_it]

    def end(self, machine: Machine, reason: str = "Client.UserInitiatedShutdown") -> None:
        """As somebody else, or EC2 itself, would end it."""
        with self._lock:
            self._go(machine, reason)

    def forget(self, machine: Machine) -> None:
        """As EC2 does an hour after an instance's end: it is not shown any more, by nothing."""
        with self._lock:
            machine.shown_at = machine.tagged_at = math.inf

    def user_data(self, machine: Machine) -> str:
        return base64.b64decode(machine.asked["UserData"]).decode()

    # ── the door ────────────────────────────────────────────────────────────────────────────────────────────────

    def act(self, action: str, parameters: Parameters) -> Answer:
        with self._lock:
            self.calls[action] += 1
            self.log.append((action, parameters))
        if self.held is not None:
            self.held(action, parameters, "before")
        with self._lock:
            if self.cut:
                raise Lost
            if self.mischief.throws(self.mischief.throttled):
                self.faults["throttled"] += 1
                raise Refused("RequestLimitExceeded", "Request limit exceeded.", 503)
            if (refused := self.mischief.refusal_of(action, parameters)) is not None:
                if action == "RunInstances":
                    self._same_as_before(parameters)
                    self._remember(parameters)
                raise refused
            self._authorize(action, parameters)
        with self._lock:
            answer = self._actions()[action](parameters)
        if self.held is not None:
            self.held(action, parameters, "after")
        with self._lock:
            if action in EFFECTS and self.mischief.throws(self.mischief.lost):
                self.faults["lost"] += 1
                raise Lost
        return answer

    def _authorize(self, action: str, ask: Parameters) -> None:
        """Ask IAM before anything is looked up, as EC2 does: a condition on a tag is not met by what bears none, so
        an instance that is forgotten, or not shown yet, answers 403 and not that it does not exist."""
        now = time.monotonic()
        seen = {m.id: m.tags for m in self.machines.values() if max(m.shown_at, m.tagged_at) <= now}
        asked = list(authorizations((action, ask), seen))
        known = {m.tags.get(INSTALLATION, "") for m in self.machines.values()}
        known |= {one.context.get(f"aws:RequestTag/{INSTALLATION}", "") for one in asked}
        policies = [documented_policy(installation) for installation in known | {"nobody's"}]
        if denied := [one for one in asked if not any(allows(policy, one) for policy in policies)]:
            raise Refused("UnauthorizedOperation", f"You are not authorized to perform {denied[0].action}.", 403)

    def _actions(self) -> dict[str, Callable[[Parameters], Answer]]:
        return {
            "RunInstances": self._run, "DescribeInstances": self._describe, "TerminateInstances": self._terminate,
            "GetConsoleOutput": self._console_output, "DescribeImages": self._images,
        }  # fmt: skip

    def _run(self, ask: Parameters) -> Answer:
        token = ask.get("ClientToken", "")
        self._same_as_before(ask)
        if made := next((m for m in self.machines.values() if token and m.token == token), None):
            if not made.lives:
                raise Refused("IdempotentInstanceTerminated", f"The instance {made.id} has been terminated.")
            return {"reservationId": f"r-{made.id[2:]}", "instancesSet": [made.described()]}
        self._remember(ask)
        if ask["ImageId"] not in IMAGES:
            raise Refused("InvalidAMIID.NotFound", f"The image id '[{ask['ImageId']}]' does not exist")
        spot = ask.get("InstanceMarketOptions.MarketType") == "spot"
        if f"{ask['InstanceType']}{' spot' if spot else ''}" in self.mischief.short_of:
            raise Refused("InsufficientInstanceCapacity", "We currently do not have sufficient capacity.", 500)
        if self.mischief.quota is not None and len(self.there()) >= self.mischief.quota:
            raise Refused("InstanceLimitExceeded", f"Your quota allows for {self.mischief.quota} instances.")
        machine = self._made(ask, token)
        self._refused.pop(token, None)
        return {"reservationId": f"r-{machine.id[2:]}", "instancesSet": [machine.described()]}

    def _same_as_before(self, ask: Parameters) -> None:
        """A token is of one request, whether that was granted or refused."""
        token = ask.get("ClientToken", "")
        asked = [machine.asked for machine in self.machines.values() if machine.token == token]
        asked += [self._refused[token]] if token in self._refused else []
        if token and any({**one, "ClientToken": ""} != {**ask, "ClientToken": ""} for one in asked):
            raise Refused(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
            )

    def _remember(self, ask: Parameters) -> None:
        if self.mischief.remembers_refused:
            self._refused[ask.get("ClientToken", "")] = ask

    def _made(self, ask: Parameters, token: str) -> Machine:
        instance_id, now = f"i-{next(self._numbers):017x}", time.monotonic()
        (tags,) = [
            {tag["Key"]: tag["Value"] for tag in grouped(specification, "Tag")}
            for specification in grouped(ask, "TagSpecification")
            if specification["ResourceType"] == "instance"
        ]
        shown_at = now + self.mischief.delay()
        user_data = base64.b64decode(ask.get("UserData", ""))
        if len(user_data) > 16384:
            raise Refused("InvalidParameterValue", "User data is limited to 16384 bytes")
        machine = Machine(
            id=instance_id,
            token=token,
            asked=ask,
            tags=tags,
            launched=datetime.now(UTC),
            shown_at=shown_at,
            tagged_at=shown_at + self.mischief.delay(),
            boots_at=now + self.mischief.boot_s,
            volumes=volumes_of(ask),
            inside=Inside(self.directory / instance_id, user_data.decode("utf-8", "surrogateescape"))
            if self.boots
            else None,
        )
        self.machines[instance_id] = machine
        self.most = max(self.most, len(self.there()))
        if self.made is not None:
            self.made(machine)
        return machine

    def _describe(self, ask: Parameters) -> Answer:
        now = time.monotonic()
        ids = numbered(ask, "InstanceId")
        most = int(ask.get("MaxResults", 1000))
        if ids and "MaxResults" in ask:
            raise Refused("InvalidParameterCombination", "The parameter instancesSet cannot be used with maxResults")
        if not 5 <= most <= 1000:
            raise Refused("InvalidParameterValue", f"Value ( {most} ) for parameter maxResults is invalid.")
        if token := ask.get("NextToken"):
            left = self._pages.pop(token)
        else:
            shown = {m.id: m for m in self.machines.values() if m.shown_at <= now}
            if unknown := [one for one in ids if one not in shown]:
                raise Refused("InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(unknown)}' do not exist")
            filters = [(one["Name"], numbered(one, "Value")) for one in grouped(ask, "Filter")]
            if sum(len(values) for _, values in filters) > 200:
                raise Refused("FilterLimitExceeded", "The maximum number of filter values in a single call is 200")
            left = [m.id for m in shown.values() if (not ids or m.id in ids) and _passes(m, filters, now)]
        size = min(most, self.mischief.page)
        if self.mischief.empty_pages and left and not str(token or "").endswith("-full"):
            return {"reservationSet": [], "nextToken": self._more(left, "-full")}
        page, left = left[:size], left[size:]
        found = [self.machines[one].described() for one in page]
        reservations = [{"reservationId": f"r-{one['instanceId'][2:]}", "instancesSet": [one]} for one in found]
        return {"reservationSet": reservations, "nextToken": self._more(left, "") if left else None}

    def _more(self, left: list[str], kind: str) -> str:
        token = f"token-{next(self._numbers)}{kind}"
        self._pages[token] = left
        return token

    def _terminate(self, ask: Parameters) -> Answer:
        ids, now = numbered(ask, "InstanceId"), time.monotonic()
        if unknown := [one for one in ids if one not in self.machines or self.machines[one].shown_at > now]:
            raise Refused("InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(unknown)}' do not exist")
        answer = []
        for machine in (self.machines[one] for one in ids):
            before = machine.state
            self._go(machine, "Client.UserInitiatedShutdown")
            states = {"currentState": machine.state, "previousState": before}
            answer.append({
                "instanceId": machine.id,
                **{key: {"code": CODES[state], "name": state} for key, state in states.items()},
            })  # fmt: skip
        return {"instancesSet": answer}

    def _console_output(self, ask: Parameters) -> Answer:
        machine = self.machines.get(ask["InstanceId"])
        if machine is None:
            raise Refused("InvalidInstanceID.NotFound", f"The instance ID '{ask['InstanceId']}' does not exist")
        text = machine.inside.console if machine.inside else b""
        return {"instanceId": machine.id, "output": base64.b64encode(text).decode()}

    def _images(self, ask: Parameters) -> Answer:
        wanted = numbered(ask, "ImageId")
        if unknown := [one for one in wanted if one not in IMAGES]:
            raise Refused("InvalidAMIID.NotFound", f"The image id '[{unknown[0]}]' does not exist")
        return {"imagesSet": [IMAGES[one] for one in wanted]}

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _go(self, machine: Machine, reason: str) -> None:
        if not machine.lives:
            return
        machine.state, machine.reason = "shutting-down", (reason, f"{reason}: as it happens")
        ending = threading.Thread(target=self._shut_down, args=[machine], daemon=True)
        ending.start()

    def _shut_down(self, machine: Machine) -> None:
        if machine.inside is not None:
            machine.inside.end(self.mischief.stop_grace_s)
        time.sleep(self.mischief.shutdown_s)
        with self._lock:
            machine.state = "terminated"

    def tick(self) -> None:
        """Let happen what is due."""
        now = time.monotonic()
        with self._lock:
            for machine in [m for m in self.machines.values() if m.lives]:
                if machine.state == "pending" and machine.boots_at <= now:
                    machine.state = "running"
                    if machine.inside is not None:
                        machine.inside.boot()
                elif machine.inside is not None:
                    self._heed_switch(machine, machine.inside, now)

    def _heed_switch(self, machine: Machine, inside: Inside, now: float) -> None:
        for said in inside.switched:
            after = next((word for word in said if word.startswith("+")), None)
            if after is None:
                self._go(machine, "Client.InstanceInitiatedShutdown")
            elif machine.fence_at is None:
                machine.fence_at = now + int(after) * self.mischief.minute_s
        if machine.fence_at is not None and machine.fence_at <= now:
            self._go(machine, "Client.InstanceInitiatedShutdown")

    def close(self) -> None:
        for machine in list(self.machines.values()):
            if machine.inside is not None:
                machine.inside.end(0.0)


def _passes(machine: Machine, filters: list[tuple[str, list[str]]], now: float) -> bool:
    for name, values in filters:
        if name in ("instance-id", "client-token"):
            if (machine.id if name == "instance-id" else machine.token) not in values:
                return False
            continue
        if not name.startswith("tag:"):
            raise Refused("InvalidParameterValue", f"The filter '{name}' is invalid")
        if machine.tagged_at > now or machine.tags.get(name.removeprefix("tag:")) not in values:
            return False
    return True


@contextmanager
def running_ec2(mischief: Mischief | None = None, *, boots: bool = True) -> Iterator[FakeEc2]:
    """A cloud on a free port. Nothing of its instances runs when it ends."""
    directory = Path(tempfile.mkdtemp(prefix="fake-ec2-"))
    cloud = FakeEc2(directory, boots=boots, mischief=mischief or Mischief())
    over = threading.Event()

    def time_passes() -> None:
        while not over.wait(0.02):
            cloud.tick()

    clock = threading.Thread(target=time_passes, daemon=True)
    try:
        with serving(cloud.act) as url:
            cloud.url = url
            clock.start()
            yield cloud
    finally:
        over.set()
        clock.join()
        cloud.close()
        shutil.rmtree(directory)


def report(cloud: FakeEc2) -> str:
    """The calls and the faults as one line, for a test that prints what it measured."""
    return json.dumps(dict(sorted(cloud.calls.items())) | dict(sorted(cloud.faults.items())))
