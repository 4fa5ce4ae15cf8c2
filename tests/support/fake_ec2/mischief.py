"""How mean the cloud is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.fake_ec2.wire import Parameters, Refused


@dataclass
class Refusal:
    """One error, for calls of one action that fit, so many times."""

    action: str
    error: Refused
    times: int
    fits: Callable[[Parameters], bool]


@dataclass
class Mischief:
    """Chances from 0 to 1, times in seconds."""

    seed: int = 1
    lost: float = 0.0
    """Of calls that have an effect: it is done, and the reply is lost."""
    throttled: float = 0.0
    late_s: float = 0.0
    """A new instance is shown up to this much later, and its tags up to this much after that."""
    boot_s: float = 0.05
    shutdown_s: float = 0.05
    """In `shutting-down`, beside what its processes take."""
    stop_grace_s: float = 1.0
    page: int = 1000
    """Instances on one page, whatever was asked for."""
    empty_pages: bool = False
    """Every second page is empty, and says that there is more."""
    refusals: list[Refusal] = field(default_factory=list)
    short_of: set[str] = field(default_factory=set)
    """Offers without capacity: `m7i.large`, `m7i.large spot`."""
    quota: int | None = None
    """Instances that the account may have at once."""
    remembers_refused: bool = True
    """A token of a request that was refused is as used as one of a request that was granted. AWS does not say so, and
    it has been seen after a lack of capacity."""
    minute_s: float = 60.0
    """How long a minute of an instance's own `shutdown -P +N` takes."""

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)  # noqa: S311 - one seed gives one cloud

    def throws(self, chance: float) -> bool:
        return chance > 0 and self._dice.random() < chance

    def delay(self) -> float:
        return self._dice.uniform(0, self.late_s) if self.late_s else 0.0

    def refuse(
        self, action: str, code: str, message: str = "as the test says", *, status: int = 400, times: int = 1,
        fits: Callable[[Parameters], bool] = lambda _: True,
    ) -> None:  # fmt: skip
        """Answer the next calls of this action with an error."""
        self.refusals.append(Refusal(action, Refused(code, message, status), times, fits))

    def refusal_of(self, action: str, parameters: Parameters) -> Refused | None:
        for refusal in self.refusals:
            if refusal.action == action and refusal.times > 0 and refusal.fits(parameters):
                refusal.times -= 1
                return refusal.error
        return None
