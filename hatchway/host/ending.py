"""The end of bare-metal agents: seeing it, bringing it about, and forgetting the record once nothing is left."""

from __future__ import annotations

import signal

import structlog

from hatchway.host.cgroups import Cgroups
from hatchway.host.processes import refuse_another_users, send_signal, supervised_by, survivors_of
from hatchway.host.records import Ended, RecordDamagedError, Records, Started

log = structlog.get_logger(__name__)


class Ending:
    """Ends agents of this host. Blocking: call it from a thread."""

    def __init__(self, records: Records, boot_id: str, cgroups: Cgroups) -> None:
        self._records = records
        self._boot_id = boot_id
        self._cgroups = cgroups

    def remove_if_over(self, agent_id: str) -> bool:
        """Forget the agent if nothing of it is left, or there never was one. False while something runs or is starting.

        Another installation's agent is none of ours: True, and untouched.
        """
        if not self._records.is_ours(agent_id):
            return True
        try:
            lock = self._records.try_lock(agent_id)
        except FileNotFoundError:
            grouped, marked = self._cgroups.kill(agent_id), self.kill_unrecorded(agent_id)
            return not (grouped or marked)
        if lock is None:
            return False
        try:
            if self.kill_survivors(agent_id) or self.kill_unrecorded(agent_id):
                return False
            self.forget(agent_id)
        finally:
            lock.close()
        return True

    def forget(self, agent_id: str) -> None:
        """Remove the record. Only for the holder of its lock, and only once nothing runs."""
        self._cgroups.remove(agent_id, self._recorded_groups(agent_id))
        left = self._records.remove(agent_id)
        if left is not None:
            log.warning("an agent's files stay: they will be deleted later", agent_id=agent_id, path=str(left))

    def signal_shim(self, agent_id: str, number: signal.Signals) -> bool:
        """SIGTERM: end the agent with its grace. False when there is no shim to be signalled."""
        started = self._records.forked(agent_id)
        return started is not None and started.boot_id == self._boot_id and send_signal(started.shim, number)

    def kill(self, agent_id: str) -> None:
        """Go past a shim that does not react: first the tree, of which it is the parent, then itself."""
        self.kill_survivors(agent_id)
        self.kill_unrecorded(agent_id)
        self.signal_shim(agent_id, signal.SIGKILL)

    def kill_survivors(self, agent_id: str) -> bool:
        """SIGKILL what runs without its shim. True if there was anything; a shim that wrote the end left nothing."""
        grouped = self._cgroups.kill(agent_id, self._recorded_groups(agent_id))
        started = self._records.forked(agent_id)
        if started is None or started.boot_id != self._boot_id or self._records.ended(agent_id) is not None:
            return grouped
        hit = [send_signal(process, signal.SIGKILL) for process in survivors_of(started.agent, agent_id)]
        return grouped or any(hit)

    def running_unrecorded(self, agent_id: str) -> Started | None:
        """The agent that runs under its supervisor while no record says so: somebody deleted files under it.

        The record is read last: whoever runs was written down before, so one that is not there by then was deleted.
        """
        found = supervised_by(agent_id)
        if found is None or self._records.forked(agent_id) is not None:
            return None
        return Started(agent=found[0], shim=found[1], boot_id=self._boot_id)

    def _recorded_groups(self, agent_id: str) -> tuple[str, ...]:
        intent = self._records.intent(agent_id)
        return () if intent is None or intent.boot_id != self._boot_id else intent.cgroups

    def kill_unrecorded(self, agent_id: str) -> bool:
        """SIGKILL what bears the agent's id while no record says who it is: somebody deleted files under it.

        A record that is not there is no evidence that nothing runs. With one this looks at nothing. Nor is it evidence
        that nothing is to be seen, where another user's worker runs the agent: raises AnotherUsersError.
        """
        if self._records.forked(agent_id) is not None:
            return False
        hit = [send_signal(process, signal.SIGKILL) for process in survivors_of(None, agent_id)]
        if any(hit):
            log.warning("an agent without a record was killed: who deletes files below the state directory?",
                        agent_id=agent_id)  # fmt: skip
        else:
            refuse_another_users(agent_id)
        return any(hit)


class EndedAgents:
    """Tells each ended agent once. Keeps what cannot change: a look costs one small read for each live agent."""

    def __init__(self, records: Records, boot_id: str) -> None:
        self._records = records
        self._boot_id = boot_id
        self._live: dict[str, Started] = {}
        self._told: set[str] = set()

    def look(self) -> list[tuple[str, Ended]]:
        """The agents that ended since the last look. No exit code where nobody wrote it: a killed shim, a reboot."""
        present = set(self._records.agent_ids())
        self._told &= present  # destroyed: its id may be told again, should it ever come back
        self._live = {agent_id: started for agent_id, started in self._live.items() if agent_id in present}
        found = []
        for agent_id in sorted(present - self._told):
            try:
                ended = self._end_of(agent_id)
            except RecordDamagedError as e:
                log.error("a damaged record", agent_id=agent_id, error=str(e))
                self._told.add(agent_id)
                continue
            if ended is not None:
                self._told.add(agent_id)
                found.append((agent_id, ended))
        return found

    def _end_of(self, agent_id: str) -> Ended | None:
        started = self._live.get(agent_id) or self._first_sight(agent_id)
        if started is None:
            return None
        if started.boot_id == self._boot_id and started.shim.is_alive():
            return None
        try:
            lock = self._records.try_lock(agent_id)
        except FileNotFoundError:
            return None
        if lock is None:
            return None  # being destroyed or started: the next look will see
        lock.close()
        return self._records.ended(agent_id) or Ended(exit_code=None)

    def _first_sight(self, agent_id: str) -> Started | None:
        started = self._records.started(agent_id)
        if started is None or self._records.intent(agent_id) is None or not self._records.is_ours(agent_id):
            return None
        self._live[agent_id] = started
        return started
