"""The supervisor of one bare-metal agent: a process of its own, so that the agent outlives the worker that started it.

Run as `python -I -S shim.py AGENT_ID RECORD_DIR LOCK_FD` with the order (JSON) on standard input. Only the standard
library: it starts once per agent and must be quick, and the worker's packages may be replaced while it runs.

    worker ── holds the record's lock ── starts ──► shim (inherits the lock) ── forks ──► agent (waits)
                                                     │ writes starting.json
                                                     │ lets the agent go ───────────────► setuid, exec
                                                     │ calls it started.json
                                                     │ answers the worker
                                                     │ pumps output, reaps
                                                     ▼ agent ended: kills what it left, writes ended.json, exits

What is promised, whoever is killed when:
- The lock is an flock that came with the open file: it is held without a gap from before this process exists until it
  ends. "Nobody holds it" therefore means that nothing runs and nothing is about to.
- The pid is on disk before the agent executes a single instruction of its own. A shim that dies earlier takes the
  waiting child with it (the pipe it waits on closes); one that dies later does too (PR_SET_PDEATHSIG).
- Descendants cannot get away: this process is their subreaper, so orphans become its children, and it only ever kills
  its own unreaped children, whose pids the kernel cannot have handed out again.
- The environment and the secrets come through the pipe and stay in memory; the log is redacted before it is written.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

if not __package__:
    # `-I -S` knows neither this package nor its neighbours. At the end, so that nothing there can shadow the library.
    sys.path.append(str(Path(__file__).parents[2]))

from hatchway.host.shim_log import Log, Redactor

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

CHUNK = 64 * 1024
REAP_INTERVAL = 0.05  # seconds between looks while killed descendants are on their way out
DRAIN_LIMIT = 5.0  # seconds for the last output, should something outside our tree hold the pipe open

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl({option})")


def write_record(directory: str, name: str, record: dict[str, Any]) -> None:
    """Put the whole record there or nothing, also through a power loss."""
    fresh = os.path.join(directory, f".{name}.{os.getpid()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, json.dumps(record).encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    rename_record(directory, os.path.basename(fresh), name)


def rename_record(directory: str, old: str, new: str) -> None:
    os.rename(os.path.join(directory, old), os.path.join(directory, new))
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def start_time_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def become_agent(order: dict[str, Any], go: int, output: int, complaint: int) -> NoReturn:
    """In the forked child: wait until the pid is on disk, drop every right, and become the agent."""
    shim = os.getppid()
    stage = "start"
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        # Whatever the worker was started with: a shell's background job ignores SIGINT and SIGQUIT, for one.
        for inherited in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(inherited, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if not os.read(go, 1):
            os._exit(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        stage = "cgroup"
        enter_cgroups(order.get("cgroup"))  # an older worker's order has none
        stage = "user"
        if order["uid"] is not None:
            os.fchown(output, order["uid"], order["gid"])  # or a script's `> /dev/stderr` is refused
            os.setgroups(order["groups"])
            os.setgid(order["gid"])
            os.setuid(order["uid"])
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after setuid, which clears it
        if os.getppid() != shim:
            os._exit(1)
        os.umask(0o022)
        stage = "home"
        os.chdir(order["home"])
        stage = "directory"
        os.chdir(order["directory"] or order["home"])
        stage = "exec"
        os.execvpe(order["argv"][0], order["argv"], order["env"])  # noqa: S606 - a shell is not wanted
    except (OSError, ValueError) as e:
        number = (e.errno if isinstance(e, OSError) else None) or errno.EINVAL
        os.write(complaint, json.dumps({"stage": stage, "errno": number}).encode())
    finally:
        os._exit(127)


def enter_cgroups(cgroup: dict[str, Any] | None) -> None:
    """Move this process into the agent's control groups; whatever it starts from here on is born there."""
    for procs in cgroup["procs"] if cgroup else ():
        fd = os.open(procs, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"0")  # the writer itself
        finally:
            os.close(fd)


def killed_for_memory(cgroup: dict[str, Any] | None) -> int:
    """How many processes of the agent the kernel killed at its memory limit, by the group's own count."""
    if not cgroup or not cgroup["events"]:
        return 0
    try:
        with open(cgroup["events"], encoding="ascii") as file:
            counts = dict(line.split(None, 1) for line in file if " " in line)
    except OSError:
        return 0  # removed under us: the count is for people, and nothing hangs on it
    return int(counts.get("oom_kill", 0))


class Shim:
    """Watches over the one agent that it started."""

    def __init__(self, directory: str, order: dict[str, Any]) -> None:
        self.directory = directory
        self.order = order
        self.agent = 0
        self.status: int | None = None
        self.asked_to_stop = False
        self.grace: float = order["grace"]
        self.log = Log(directory, order["log_bytes"])
        self.redactor = Redactor([form.encode("utf-8", "surrogateescape") for form in order["redact"]])
        self.output, self._agent_output = os.pipe()
        self.wake, self._waker = os.pipe()
        for fd in (self.output, self.wake, self._waker):
            os.set_blocking(fd, False)

    def start(self) -> None:
        """Fork the agent, write down who it is, let it go. Raises OSError, or Refused when the agent could not exec."""
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_stop)
        go, let_go = os.pipe()
        complaint, complain = os.pipe()
        self.agent = os.fork()
        if self.agent == 0:
            os.close(let_go)
            become_agent(self.order, go, self._agent_output, complain)
        for fd in (go, complain, self._agent_output):
            os.close(fd)
        try:
            write_record(self.directory, "starting.json", self.identity())
            os.write(let_go, b"g")
        finally:
            os.close(let_go)
        refused = os.read(complaint, 4096)  # ends with the exec: the descriptor is close-on-exec
        os.close(complaint)
        if refused:
            os.unlink(os.path.join(self.directory, "starting.json"))
            os.waitpid(self.agent, 0)
            raise Refused(json.loads(refused))
        rename_record(self.directory, "starting.json", "started.json")

    def identity(self) -> dict[str, Any]:
        return {
            "pid": self.agent,
            "start_time": start_time_of(self.agent),
            "shim_pid": os.getpid(),
            "shim_start_time": start_time_of(os.getpid()),
            "boot_id": self.order["boot_id"],
            "started_at": time.time(),
        }

    def _on_stop(self, _number: int, _frame: object) -> None:
        """With the grace of the order, however often it is asked."""
        self.asked_to_stop = True

    def watch(self) -> None:
        """Pump and reap until the agent has ended and nothing of its tree is left; then write how it ended."""
        poll = select.poll()
        poll.register(self.output, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        asked_at: float | None = None
        while self._reap():
            if self.asked_to_stop and asked_at is None:
                asked_at = time.monotonic()
                self._ask_to_end()
            wait: float | None = None
            if asked_at is not None:
                wait = asked_at + self.grace - time.monotonic()
            if self.status is not None or (wait is not None and wait <= 0):
                self._kill_children()
                wait = REAP_INTERVAL
            for fd, _ in poll.poll(None if wait is None else wait * 1000 + 1):
                if fd == self.output and not self._pump():
                    poll.unregister(self.output)
                elif fd == self.wake:
                    os.read(self.wake, 4096)
        self._drain()
        self._write_end()

    def _write_end(self) -> None:
        end = {"exit_code": self._exit_code(), "ended_at": time.time()}
        try:
            write_record(self.directory, "ended.json", end)
        except OSError:
            self.log.make_room()  # it may be what fills the disk, and how the agent ended is worth more
            write_record(self.directory, "ended.json", end)

    def _reap(self) -> bool:
        """Collect every child that has ended. False once none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.agent:
                self.status = status

    def _ask_to_end(self) -> None:
        if self.status is None:  # unreaped, so the group's number is still the agent's
            os.killpg(self.agent, signal.SIGTERM)
            os.killpg(self.agent, signal.SIGCONT)  # a stopped process would sleep through its grace

    def _kill_children(self) -> None:
        """SIGKILL every direct child. Theirs become ours when they die, so a few rounds reach the whole tree."""
        me = os.getpid()
        for name in os.listdir("/proc"):
            if name.isdigit() and _parent_of(int(name)) == me:
                os.kill(int(name), signal.SIGKILL)

    def _pump(self) -> bool:
        """Move what there is from the pipe to the log. False at its end."""
        try:
            data = os.read(self.output, CHUNK)
        except BlockingIOError:
            return True
        self.log.write(self.redactor.feed(data))
        return bool(data)

    def _drain(self) -> None:
        poll = select.poll()
        poll.register(self.output, select.POLLIN)
        end = time.monotonic() + DRAIN_LIMIT
        while time.monotonic() < end and poll.poll(0):
            if not self._pump():
                break
        self.log.write(self.redactor.flush())
        cgroup = self.order.get("cgroup")
        killed = killed_for_memory(cgroup)
        if cgroup and killed:
            limit = cgroup["mem_bytes"] / 2**20
            self.log.write(
                f"\nhatchway: out of memory: the kernel killed {killed} process(es) of this agent at its limit of "
                f"{limit:g} MiB\n".encode()
            )

    def _exit_code(self) -> int | None:
        """As a shell says it: the code, or 128 and the signal."""
        if self.status is None:
            return None
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code


class Refused(Exception):
    """The agent could not be executed: at which stage, and the errno."""

    def __init__(self, complaint: dict[str, Any]) -> None:
        super().__init__(complaint["stage"])
        self.complaint = complaint


def _parent_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # gone, or another user's on a machine that hides those (hidepid)


def _answer(answer: dict[str, Any]) -> None:
    """Tell the worker. It may be dead: then the record alone speaks."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(answer).encode() + b"\n")


def _let_go_of_the_worker() -> None:
    """Close the pipes to it. Only once the agent runs: to the worker, a refusal is over when its pipe is closed."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def main() -> int:
    directory, lock = sys.argv[2], int(sys.argv[3])
    if os.fork():
        return 0  # nobody's child any more: no zombie in the worker, no wait for a process that outlives it
    os.setsid()
    os.set_inheritable(lock, False)
    os.umask(0o077)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would put the claim code on disk
    with os.fdopen(0, "rb", closefd=False) as stdin:
        text = stdin.read()
    try:
        order = json.loads(text)
        del text
    except ValueError:
        return 1  # the worker died while it wrote: nothing has happened, and whoever comes next starts afresh
    try:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        shim = Shim(directory, order)
        shim.start()
    except Refused as refused:
        _answer({"refused": refused.complaint})
        return 1
    except OSError as e:
        _answer({"refused": {"stage": "record", "errno": e.errno}})
        return 1
    _answer({"started": shim.agent})
    _let_go_of_the_worker()
    del order["env"]
    shim.watch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
