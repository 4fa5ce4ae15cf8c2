"""The line, naively: after every change walk all waiters in order. What the store's SQL must equal."""

from __future__ import annotations

from dataclasses import dataclass, field

Shape = tuple[str, int, int]
"""A candidate: scaler, millicpu, bytes."""
Caps = tuple[int | None, int | None, int | None]
"""Of one scope: agents, millicpu, bytes. None = no cap."""
GLOBAL = "global"


@dataclass
class Waiting:
    agent_id: str
    priority: int
    seq: int
    candidates: list[Shape]
    version: int
    """Of the config that they were planned under."""


@dataclass
class LineModel:
    caps: dict[str, Caps]
    pool: dict[str, str | None]
    """Each scaler of the config, and its pool's scope."""
    held: dict[str, Shape] = field(default_factory=dict)
    held_pool: dict[str, str | None] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    line: list[Waiting] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    """Scalers that back off."""
    granted: set[str] = field(default_factory=set)
    """Of those that hold a slot: handed over by the line, and not taken up yet."""
    seq: int = 0

    def scopes(self, scaler: str) -> list[str]:
        pool = self.pool[scaler]
        return [f"scaler:{scaler}", *([pool] if pool else []), GLOBAL]

    def used(self, scope: str) -> tuple[int, int, int]:
        inside = [
            shape
            for agent, shape in self.held.items()
            if scope in (GLOBAL, self.held_pool[agent], f"scaler:{shape[0]}")
        ]
        return len(inside), sum(s[1] for s in inside), sum(s[2] for s in inside)

    def bound(self, candidate: Shape) -> str | None:
        """The narrowest scope without room."""
        scaler, mcpu, mem = candidate
        for scope in self.scopes(scaler):
            caps = self.caps.get(scope, (None, None, None))
            for used, want, cap in zip(self.used(scope), (1, mcpu, mem), caps, strict=True):
                if cap is not None and used + want > cap:
                    return scope
        return None

    def ever(self, candidate: Shape) -> bool:
        scaler, mcpu, mem = candidate
        if scaler in self.retired:
            return False
        return all(
            cap is None or want <= cap
            for scope in self.scopes(scaler)
            for want, cap in zip((1, mcpu, mem), self.caps.get(scope, (None, None, None)), strict=True)
        )

    def open(self, candidate: Shape) -> bool:
        return candidate[0] not in self.drained | self.retired | self.failing and self.ever(candidate)

    def reserve(self, agent_id: str, priority: int, wait: bool, candidates: list[Shape], version: int) -> str:
        if agent_id in self.held:
            self.granted.discard(agent_id)
            return "Held"
        if agent_id in self.ended:
            return "AlreadyEnded"
        known = next((w for w in self.line if w.agent_id == agent_id), None)
        if known is None and not self.line:
            for candidate in candidates:
                if self.open(candidate) and self.bound(candidate) is None:
                    self._take(agent_id, candidate)
                    return "Held"
            if not wait:
                return self._refusal(candidates)
        if known is not None and known.version != version:
            known.candidates, known.version = candidates, version
        if not any(self.ever(c) for c in candidates):
            self._leave(agent_id)
            self.pump()
            return self._refusal(candidates)
        if known is None:
            self.seq += 1
            self.line.append(Waiting(agent_id, priority, self.seq, candidates, version))
        self.pump()
        if agent_id in self.held:
            self.granted.discard(agent_id)
            return "Held"
        if wait:
            return "Waiting"
        answer = self._refusal(candidates)
        self._leave(agent_id)
        self.pump()
        return answer

    def release(self, agent_id: str) -> None:
        self.ended.add(agent_id)
        self.held.pop(agent_id, None)
        self.held_pool.pop(agent_id, None)
        self.granted.discard(agent_id)
        self._leave(agent_id)
        self.pump()

    def returned(self, agent_id: str) -> None:
        """Its workflow is gone: a grant that it never took up goes back, a slot that it took up stays."""
        if agent_id in self.granted:
            self.release(agent_id)

    def accept(self, scaler: str, accepting: bool) -> None:
        if scaler not in self.retired:
            (self.drained.discard if accepting else self.drained.add)(scaler)
        self.pump()

    def fails(self, scaler: str) -> None:
        """It backs off from now on: nobody is evicted, nobody is admitted."""
        self.failing.add(scaler)

    def recovers(self, scaler: str) -> None:
        """Its backoff runs out, and the sweep looks."""
        self.failing.discard(scaler)
        self.pump()

    def apply(self, caps: dict[str, Caps], scalers: dict[str, str | None]) -> None:
        """A new config: scalers that it lacks retire; those that come back accept again."""
        back = self.retired & set(scalers)
        self.retired = set(self.pool) - set(scalers)
        self.drained -= back | self.retired
        self.pool.update(scalers)
        self.caps = caps
        self.pump()

    def in_order(self) -> list[Waiting]:
        return sorted(self.line, key=lambda w: (w.priority, w.seq))

    def pump(self) -> None:
        blocked: set[str] = set()
        for waiter in self.in_order():
            bounds: set[str] = set()
            for candidate in waiter.candidates:
                if not self.open(candidate) or blocked & set(self.scopes(candidate[0])):
                    continue
                bound = self.bound(candidate)
                if bound is None:
                    self._leave(waiter.agent_id)
                    self._take(waiter.agent_id, candidate)
                    self.granted.add(waiter.agent_id)
                    break
                bounds.add(bound)
            else:
                blocked |= bounds

    def _refusal(self, candidates: list[Shape]) -> str:
        if any(self.open(c) for c in candidates):
            return "AtCapacity"
        names = {c[0] for c in candidates}
        if names & self.failing - self.drained - self.retired:
            return "BackingOff"
        return "Draining" if names & (self.drained | self.retired) else "NeverFits"

    def _take(self, agent_id: str, candidate: Shape) -> None:
        self.held[agent_id] = candidate
        self.held_pool[agent_id] = self.pool[candidate[0]]

    def _leave(self, agent_id: str) -> None:
        self.line = [w for w in self.line if w.agent_id != agent_id]
