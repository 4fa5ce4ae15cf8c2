"""What another configuration would change: keys by path, caps, and scalers that come and go. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hatchway.config.schema import Config
from hatchway.config.versions import canonical_json, capacities
from hatchway.printable import printable
from hatchway.quantities import say_cpus, say_memory
from hatchway.store.config_versions import Capacity, ScopeUse

SHOWN = 100
"""Characters of a value that are shown: the line is there to tell which key, `config show` has it whole."""


class ChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True)
class Change:
    """One key. Values are as in the file; None is a key that is not there. Whole scalers and pools are one change."""

    kind: ChangeKind
    path: str
    """`scalers[docker].maxAgents`: lists of what has a name are spelled by the name, label sets by their labels."""
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        path = printable(self.path)
        match self.kind:
            case ChangeKind.ADDED:
                return f"+ {path}{_value(self.after)}"
            case ChangeKind.REMOVED:
                return f"- {path}{_value(self.before)}"
            case ChangeKind.CHANGED:
                return f"~ {path}: {_short(self.before)} -> {_short(self.after)}"


@dataclass(frozen=True)
class CapChange:
    """One cap of one scope. Amounts are agents, millicpu or bytes; None is no cap."""

    scope: str
    what: str
    """`agents`, `mcpu` or `mem_bytes`."""
    before: int | None
    after: int | None
    used: int

    def __str__(self) -> str:
        before, after, used = (self._said(amount) for amount in (self.before, self.after, self.used))
        unit = {"agents": "agents", "mcpu": "CPUs", "mem_bytes": "memory"}[self.what]
        over = self.after is not None and self.used > self.after
        then = ": nobody is stopped, and nobody is let in until it is under the cap" if over else ""
        return f"{self.scope} {unit}: {before} -> {after} ({used} in use{then})"

    def _said(self, amount: int | None) -> str:
        if amount is None:
            return "no cap"
        return say_cpus(amount) if self.what == "mcpu" else say_memory(amount) if self.what != "agents" else str(amount)


@dataclass(frozen=True)
class Difference:
    changes: list[Change]
    caps: list[CapChange]
    retires: dict[str, int]
    """Scalers that leave, and how many agents of each finish."""
    returns: dict[str, int]
    """Scalers that left with an earlier version and come back, and how many of their agents still run."""
    moves: dict[str, int]
    """Scalers that change their machine pool, and how many agents go on counting in that which they were made in."""

    def lines(self) -> list[str]:
        """For people, one line each; empty when nothing changes."""
        return [
            *map(str, self.changes),
            *(f"cap {cap}" for cap in self.caps),
            *(
                f"scaler {name} retires: no new work, idle warm agents go, busy ones finish ({_agents(n)} now)"
                for name, n in self.retires.items()
            ),
            *(f"scaler {name} comes back ({_agents(n)} of it still run)" for name, n in self.returns.items()),
            *(
                f"scaler {name} changes its machine pool: what runs ({_agents(n)}) counts where it was made, to its end"
                for name, n in self.moves.items()
                if n
            ),
        ]


NOTHING = Config.model_construct(version=1, scalers=[])
"""What the first configuration is compared with: every default, and no scaler."""


def difference(before: Config | None, after: Config, use: Mapping[str, ScopeUse]) -> Difference:
    """From `before` (None: there is none, or none that can be read) to `after`, with `use` as the cluster has it."""
    old_caps = {cap.scope: cap for cap in capacities(before)} if before else {}
    new_caps = {cap.scope: cap for cap in capacities(after)}
    old_names = {scaler.name for scaler in before.scalers} if before else set()
    in_use = {counted.scaler: counted for counted in use.values() if counted.scaler is not None}
    return Difference(
        changes=list(_changes(_content(before or NOTHING), _content(after), "")),
        caps=list(_cap_changes(old_caps, new_caps, use)),
        retires={n: _agents_of(in_use, n) for n in sorted(old_names - {s.name for s in after.scalers})},
        returns={s.name: in_use[s.name].agents for s in after.scalers if s.name in in_use and in_use[s.name].retired},
        moves={
            cap.scaler: _agents_of(in_use, cap.scaler)
            for cap in new_caps.values()
            if cap.scaler is not None and cap.scope in old_caps and old_caps[cap.scope].pool != cap.pool
        },
    )


def _content(config: Config) -> dict[str, Any]:
    """With defaults: a key that is set from its default to something else has changed, and was not added."""
    content: dict[str, Any] = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    return content


def _changes(before: Any, after: Any, path: str) -> Iterator[Change]:
    old, new = _parts(before, path), _parts(after, path)
    if old is None or new is None:
        if before != after:
            yield Change(ChangeKind.CHANGED, path, before, after)
        return
    for key in [*old, *(key for key in new if key not in old)]:
        if key not in new:
            yield Change(ChangeKind.REMOVED, key, before=old[key])
        elif key not in old:
            yield Change(ChangeKind.ADDED, key, after=new[key])
        else:
            yield from _changes(old[key], new[key], key)


def _parts(value: Any, path: str) -> dict[str, Any] | None:
    """What a value consists of, by path; None for one that is compared as a whole."""
    if isinstance(value, Mapping):
        return {f"{path}.{key}" if path else str(key): part for key, part in value.items()}
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        names = [_name(item) for item in value]
        if None not in names and len(set(names)) == len(names):
            return {f"{path}[{name}]": item for name, item in zip(names, value, strict=True)}
        return {f"{path}[{index}]": item for index, item in enumerate(value)}
    return {} if value == [] else None


def _name(item: Mapping[str, Any]) -> str | None:
    if isinstance(labels := item.get("labels"), list):
        return ",".join(sorted(str(label).lower() for label in labels))
    name = item.get("name", item.get("registry"))
    return None if name is None else str(name)


def _cap_changes(
    before: Mapping[str, Capacity], after: Mapping[str, Capacity], use: Mapping[str, ScopeUse]
) -> Iterator[CapChange]:
    for scope in [*after, *(scope for scope in before if scope not in after)]:
        old, new, counted = before.get(scope), after.get(scope), use.get(scope)
        if new is None and old is not None and old.scaler is not None:
            continue  # it retires, which is said as such: it has no cap, and takes nobody
        for cap, what in (("max_agents", "agents"), ("max_mcpu", "mcpu"), ("max_mem_bytes", "mem_bytes")):
            was, becomes = getattr(old, cap, None), getattr(new, cap, None)
            if was != becomes:
                yield CapChange(scope, what, was, becomes, getattr(counted, what, 0))


def _agents_of(in_use: Mapping[str, ScopeUse], scaler: str) -> int:
    return in_use[scaler].agents if scaler in in_use else 0


def _agents(number: int) -> str:
    return "1 agent" if number == 1 else f"{number} agents"


def _value(value: Any) -> str:
    return "" if isinstance(value, Mapping) else f": {_short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = "none" if value is None else value if isinstance(value, str) else canonical_json({"": value})[4:-1]
    text = printable(text)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
