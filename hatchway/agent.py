#!/usr/bin/env python3
"""The reference agent: one file, the standard library, Python 3.8 or newer.

    python3 agent.py [-- COMMAND [ARG…]]

It redeems its claim at a gateway, registers, sends heartbeats while it runs one command, reports how the command
ended, and exits with the command's code. Without a command it serves until the gateway drains it. A warm agent, made
before there was a job, waits until the answer to a heartbeat names one, and runs its command then: one job, one agent.

Environment:
  KICI_ORCHESTRATOR_URL     gateways: one http(s) address or a comma list, tried in turn
  KICI_SCALER_CLAIM_CODE    the one-time claim; it is taken out of the environment before the command starts
  HATCHWAY_AGENT_COMMAND    the command as a JSON array of strings, when none is given after `--`
  HATCHWAY_STRANDED_SECONDS how long to go on without any gateway (1800)

The command gets this environment without the claim and the command, and HATCHWAY_JOB_ID and HATCHWAY_RUN_ID where a job
is bound. The agent's token is held in memory only: it is never written, printed or put into an environment.

Exit codes: the command's own (128 + N when signal N ended it, 127 not found, 126 not executable);
  0 drained, or told to stop while it ran nothing · 64 wrong use · 75 no gateway for too long · 77 the claim or the
  registration was refused · 143 told to stop (SIGTERM, or the gateway's 401 or 410) before the command had ended.

A command that ends after the agent was told to stop is not reported: nobody can say whether it finished its work, and
a wrong "succeeded" costs more than running the job again. All waits use the monotonic clock, so a machine whose wall
clock is wrong works like any other.

Run as a file it has its own directory first on the import path, so it imports nothing that a neighbour could shadow
(`secrets`, for one).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import math
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn
from urllib.parse import urlsplit

VERSION = "0.1.0"

EXIT_USAGE = 64
EXIT_STRANDED = 75
EXIT_REFUSED = 77
EXIT_TOLD_TO_STOP = 128 + signal.SIGTERM

STRANDED_S = 1800.0
"""As long as the reaper waits before it gives up on an absent agent: both sides let go at the same time."""
CALL_S = 10.0
"""One call, from connecting to the last byte; a heartbeat is due every 30 s and missed after 90 s."""
REPORT_S = 600.0
"""How long a finished command's result is offered. Afterwards the compute's exit tells the provision anyway."""
STOP_GRACE_S = 30.0
MAX_PAUSE_S = 15.0
MAX_ANSWER = 256 * 1024
PASSING = (404, 405, 408, 425, 429)
"""Refusals that say nothing about this agent: a rollout, a proxy without a backend, a rate limit."""

_started = time.monotonic()


def say(message: str) -> None:
    """One line on stderr, stamped by the time since the start: the wall clock may be wrong here."""
    # Whatever is in the way (the log pipe is gone, there is no memory for a line) is no reason to stop a job.
    with contextlib.suppress(Exception):
        print(f"[{time.monotonic() - _started:9.3f}s] hatchway-agent: {message}", file=sys.stderr, flush=True)


class UsageError(Exception):
    """The agent was started wrongly. Never quotes an environment value: it may be the claim."""


class RefusedError(Exception):
    """A gateway said no, and asking again will not change that."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} (HTTP {status})")
        self.status = status


class StrandedError(Exception):
    """No gateway gave a usable answer for as long as this call may wait."""


class HaltedError(Exception):
    """The agent was told to stop while it waited for a gateway."""


class UnavailableError(Exception):
    """This gateway gave no usable answer this time. `retry_after` is in seconds, 0 when it did not say."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Gateway:
    """One gateway's address. Speaks JSON over a fresh connection a call: a broken one cannot spoil the next.

    http.client rather than urllib: it follows no redirect, so the token goes to this host only, and it honours no
    proxy variable, so the claim is not read out to a proxy that was meant for the job.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError("KICI_ORCHESTRATOR_URL must hold http:// or https:// addresses, separated by commas")
        if parts.username or parts.password:
            raise UsageError("KICI_ORCHESTRATOR_URL must not hold a user or password: the claim is the credential")
        try:
            port = parts.port
        except ValueError:
            raise UsageError("KICI_ORCHESTRATOR_URL has a port that is not a number up to 65535") from None
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self.name = f"{parts.scheme}://{parts.netloc}{self._path}"

    def call(self, path: str, body: dict[str, Any], token: str | None) -> tuple[int, dict[str, Any]]:
        """The status and the JSON object that came back. Raises UnavailableError for everything that may pass."""
        connection: http.client.HTTPConnection
        if self._tls:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=CALL_S, context=self._tls)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=CALL_S)
        headers = {"Content-Type": "application/json", "User-Agent": f"hatchway-agent/{VERSION}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        sock = None
        try:
            connection.connect()
            sock = connection.sock
            connection.sock = _Bounded(sock)
            connection.request("POST", self._path + path, json.dumps(body).encode(), headers)
            response = connection.getresponse()
            raw = response.read(MAX_ANSWER + 1)
            return self._understood(response, raw)
        except UnavailableError:
            raise
        except (OSError, http.client.HTTPException) as e:
            raise UnavailableError(f"{type(e).__name__}: {e}") from None
        except Exception as e:  # no memory, say: that may pass like an outage. Its words are not said: they may quote
            raise UnavailableError(f"{type(e).__name__}, which was not foreseen") from None
        finally:
            connection.close()
            if sock is not None:
                sock.close()

    def _understood(self, response: http.client.HTTPResponse, raw: bytes) -> tuple[int, dict[str, Any]]:
        status = response.status
        if status != 200 and (status < 400 or status >= 500 or status in PASSING):
            raise UnavailableError(f"HTTP {status}", _seconds(response.getheader("Retry-After")))
        try:
            answer = json.loads(raw) if raw else {}
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or len(raw) > MAX_ANSWER or (status == 200 and not raw):
            # A page from a proxy that stands in the way is not a gateway's word, whatever its status.
            raise UnavailableError(f"HTTP {status} with an answer that is not a gateway's")
        return status, answer


class _Bounded(io.RawIOBase):
    """A connected socket, in http.client's hands, whose writes and reads are all over CALL_S from now.

    A socket's own timeout bounds each read, not the answer: a server that drips bytes would hold the call for ever. No
    thread watches over it, for a job may use up all that the machine has to give.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._deadline = time.monotonic() + CALL_S

    def sendall(self, data: bytes) -> None:
        self._bound().sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._bound().recv_into(buffer)

    def close(self) -> None:
        """Nothing: http.client closes as soon as an answer says that it is the last one, and then reads on."""

    def _bound(self) -> socket.socket:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"not over within {CALL_S:g} s")
        self._sock.settimeout(left)
        return self._sock


def _seconds(value: object, highest: float = 60.0) -> float:
    """A waiting time from the other side, held between 0 and `highest`; 0 for anything that is not a number."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), highest) if math.isfinite(seconds) else 0.0


class Gateways:
    """All gateways. A call stays with the one that answered last, and goes on to the next when that one fails."""

    def __init__(self, urls: str) -> None:
        self._all = [Gateway(url.strip()) for url in urls.split(",") if url.strip()]
        if not self._all:
            raise UsageError("KICI_ORCHESTRATOR_URL is not set: it names the gateways, separated by commas")
        self._lock = threading.Lock()
        self._at = 0
        self._heard = time.monotonic()

    def unheard_s(self) -> float:
        """Seconds since a gateway last gave a usable answer."""
        return time.monotonic() - self._heard

    def once(self, path: str, body: dict[str, Any], token: str | None) -> tuple[int, dict[str, Any]]:
        """Ask each gateway at most once. Raises UnavailableError when none of them had an answer."""
        with self._lock:
            first = self._at
        pause = 0.0
        for step in range(len(self._all)):
            index = (first + step) % len(self._all)
            gateway = self._all[index]
            try:
                status, answer = gateway.call(path, body, token)
            except UnavailableError as e:
                say(f"{gateway.name}{path}: {e}")
                pause = max(pause, e.retry_after)
                continue
            with self._lock:
                self._at = index
                self._heard = time.monotonic()
            return status, answer
        raise UnavailableError("no gateway answered", pause)

    def until_answered(
        self, path: str, body: dict[str, Any], token: str | None, limit_s: float, halt: threading.Event
    ) -> dict[str, Any]:
        """The answer of a call that is repeated until a gateway accepts or refuses it.

        Raises RefusedError, StrandedError after `limit_s` without an answer, or HaltedError as soon as `halt` is set.
        """
        begun = time.monotonic()
        pause = 0.25
        while not halt.is_set():
            asked = 0.0
            try:
                status, answer = self.once(path, body, token)
                if status == 200:
                    return answer
                raise RefusedError(status, str(answer.get("message") or answer.get("error") or "refused"))
            except RefusedError:
                raise
            except Exception as e:  # an outage, or what nobody foresaw: neither may lose what is to be said
                asked = getattr(e, "retry_after", 0.0)
            left = limit_s - (time.monotonic() - begun)
            if left <= 0:
                raise StrandedError(f"no gateway answered {path} for {limit_s:g} s")
            # Spread out: a gateway that comes back meets all its agents at once.
            halt.wait(min(max(pause * random.uniform(0.5, 1.0), asked), left))  # noqa: S311 - no secret
            pause = min(pause * 2, MAX_PAUSE_S)
        raise HaltedError


class Job:
    """The command, in a process group of its own, so that a signal reaches all of it and none of the agent."""

    def __init__(self, command: list[str], environment: dict[str, str], ended: Callable[[], None]) -> None:
        self.exit_code: int | None = None
        self._ended = ended
        options: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL}
        if sys.version_info >= (3, 11):  # noqa: UP036 - the machine's Python runs this file, not Hatchway's
            options["process_group"] = 0
        else:
            options["preexec_fn"] = os.setpgrp
        self._process: subprocess.Popen[bytes] | None = None
        tried = threading.Event()
        # Before the command: where there is no thread to be had, none runs that nobody waits for.
        threading.Thread(target=self._wait, args=(tried,), name="job", daemon=True).start()
        try:
            self._process = subprocess.Popen(command, **options)
        finally:
            tried.set()

    def _wait(self, tried: threading.Event) -> None:
        tried.wait()
        if self._process is None:
            return
        code = self._process.wait()
        self.exit_code = code if code >= 0 else 128 - code
        self._ended()

    def signal(self, number: int) -> None:
        # A group that has just ended is what the signal asks for.
        if self._process is not None and self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


class Agent:
    """One agent process: redeem, register, run or serve, report."""

    def __init__(self, gateways: Gateways, command: list[str] | None, stranded_s: float) -> None:
        self._gateways = gateways
        self._command = command
        self._stranded_s = stranded_s
        self._registration = os.urandom(16).hex()
        self._token = ""
        self._interval_s = 30.0
        self._job: Job | None = None
        self._awaited: dict[str, Any] | None = None
        """What a warm agent was bound to, heard in a heartbeat's answer and not started yet."""
        self._warm = False
        self._drain = False
        self._told_to_stop = ""
        self._starting = threading.Lock()
        """Held while a command is being started: SIGTERM reaches it exactly once, whenever it comes."""
        self._registered = threading.Event()
        self._terminated = threading.Event()
        self._finished = threading.Event()
        self._wake = threading.Event()
        """Set when anything happened that the main thread decides on."""

    def __repr__(self) -> str:
        return "Agent()"

    def terminate(self, number: int) -> None:
        """SIGTERM or SIGINT: hand it to the command. Its grace is the sender's to decide."""
        with self._starting:
            if self._job is not None and self._job.exit_code is not None:
                return  # It ended before the signal came: its result stands, and is being reported.
            self._terminated.set()
            if self._job is not None:
                self._job.signal(number)
        self._wake.set()

    def run(self, claim: str) -> int:
        """Live one agent's life. Returns the exit code."""
        # Before the claim is spent: where there is no thread to be had, the agent ends at once.
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        try:
            agent_id = self._redeem(claim)
            bound = self._register()
        except RefusedError as e:
            say(f"refused: {e}")
            return EXIT_REFUSED if e.status not in (401, 410) else 0
        except StrandedError as e:
            say(f"giving up: {e}")
            return EXIT_STRANDED
        except HaltedError:
            say("told to stop before it was registered")
            return EXIT_TOLD_TO_STOP
        say(f"registered as {agent_id}" + (f" for job {bound['job_id']}" if bound.get("job_id") else ""))
        self._warm = bool(bound.get("warm"))
        self._registered.set()
        if self._warm:
            say("warm: waiting for a job")
        code = None if self._warm else self._start(bound)
        if code is None:
            code = self._attend()
            if code is None:
                return self._stopped()
        try:
            return self._report(code)
        finally:
            self._finished.set()

    def _redeem(self, claim: str) -> str:
        # The same nonce for every attempt: it makes a repeated call the same call, so a lost reply loses nothing.
        body = {"claim_code": claim, "nonce": os.urandom(32).hex()}
        answer = self._gateways.until_answered("/v1/claims/redeem", body, None, self._stranded_s, self._terminated)
        self._token = str(answer.get("token", ""))
        self._pace(answer.get("heartbeat_interval_s"))
        return str(answer.get("agent_id", ""))

    def _register(self) -> dict[str, Any]:
        body = {"registration_id": self._registration, "agent_version": VERSION}
        answer = self._gateways.until_answered(
            "/v1/agents/register", body, self._token, self._stranded_s, self._terminated
        )
        self._pace(answer.get("heartbeat_interval_s"))
        return answer

    def _pace(self, seconds: object) -> None:
        asked = _seconds(seconds, 300.0)
        if asked > 0:
            self._interval_s = max(asked, 0.05)

    def _beat(self) -> None:
        """The heartbeat thread. A failed heartbeat is followed by the next one sooner."""
        self._registered.wait()
        wait_s = self._interval_s
        retry_s = 1.0
        while not self._finished.wait(wait_s * random.uniform(0.9, 1.0)):  # noqa: S311 - no secret
            try:
                if not self._heartbeat():
                    return
            except Exception as e:  # this thread's end would be the agent's silence, and the end of its job
                if not isinstance(e, UnavailableError):
                    say(f"the heartbeat failed: {type(e).__name__}, which was not foreseen")
                wait_s = min(max(retry_s, getattr(e, "retry_after", 0.0)), self._interval_s)
                retry_s *= 2
            else:
                wait_s, retry_s = self._interval_s, 1.0

    def _heartbeat(self) -> bool:
        """One heartbeat, and what follows from its answer. False when it was the last one: the agent has to stop."""
        body = {"registration_id": self._registration, "busy": self._job is not None}
        status, answer = self._gateways.once("/v1/agents/heartbeat", body, self._token)
        if status in (401, 410):
            self._told_to_stop = str(answer.get("message") or f"HTTP {status}")
            self._wake.set()
            return False
        if status == 200:
            self._pace(answer.get("next_in_s"))
            job = answer.get("job")
            if self._warm and self._awaited is None and isinstance(job, dict) and job.get("job_id"):
                self._awaited = job
                self._wake.set()
            if answer.get("drain") and not self._drain:
                self._drain = True
                self._wake.set()
        return True

    def _start(self, bound: dict[str, Any]) -> int | None:
        """Start the command, if there is one. Returns an exit code when it could not be started."""
        if self._command is None:
            say("no command: serving until drained")
            return None
        environment = {k: v for k, v in os.environ.items() if k not in (CLAIM, COMMAND)}
        for variable, field in (("HATCHWAY_JOB_ID", "job_id"), ("HATCHWAY_RUN_ID", "run_id")):
            if bound.get(field):
                environment[variable] = str(bound[field])
        with self._starting:
            try:
                self._job = Job(self._command, environment, self._wake.set)
            except Exception as e:  # a bad word or directory, no process, no thread or no memory to be had
                missing = isinstance(e, FileNotFoundError)
                say(f"the command cannot be started: {e.strerror if isinstance(e, OSError) else e or type(e).__name__}")
                return 127 if missing else 126
            if self._terminated.is_set():
                # SIGTERM came between the registration and this line, when there was no job to hand it to.
                self._job.signal(signal.SIGTERM)
        return None

    def _attend(self) -> int | None:
        """Wait for the end. Returns the result's exit code, or None when there is nothing to report."""
        while True:
            self._wake.wait(max(0.0, self._stranded_s - self._gateways.unheard_s()))
            self._wake.clear()
            stopped = self._terminated.is_set()
            if self._job is not None and self._job.exit_code is not None:
                return None if stopped else self._job.exit_code
            if self._told_to_stop or self._gateways.unheard_s() >= self._stranded_s:
                return None
            if self._job is None and stopped:
                return None
            if self._warm and self._awaited is not None:
                self._warm = False
                say(f"bound to job {self._awaited['job_id']}")
                code = self._start(self._awaited)
                if code is not None:
                    return code
            if self._job is None and self._drain:
                say("drained")
                return 0

    def _stopped(self) -> int:
        """End without a report: SIGTERM, the gateway's word, or no gateway for too long."""
        self._finished.set()
        stranded = not self._told_to_stop and not self._terminated.is_set()
        if stranded:
            say(f"no gateway answered for {self._stranded_s:g} s: giving up")
        elif self._told_to_stop:
            say(f"told to stop: {self._told_to_stop}")
        running = self._job is not None
        if self._job is not None and self._job.exit_code is None:
            self._end(self._job)
        if stranded:
            return EXIT_STRANDED
        return EXIT_TOLD_TO_STOP if running or self._terminated.is_set() else 0

    def _end(self, job: Job) -> None:
        say("stopping the command")
        job.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_GRACE_S
        while job.exit_code is None and time.monotonic() < deadline:
            self._wake.wait(deadline - time.monotonic())
            self._wake.clear()
        if job.exit_code is None:
            say(f"the command did not stop within {STOP_GRACE_S:g} s: killing it")
            job.signal(signal.SIGKILL)
            self._wake.wait(5.0)

    def _report(self, code: int) -> int:
        body = {
            "registration_id": self._registration,
            "result": "succeeded" if code == 0 else "failed",
            "exit_code": code,
        }
        # Not halted by SIGTERM: the command has ended, and losing its result would cost the whole job.
        never = threading.Event()
        try:
            self._gateways.until_answered(
                "/v1/agents/complete", body, self._token, min(REPORT_S, self._stranded_s), never
            )
        except RefusedError as e:
            if e.status not in (401, 410):
                say(f"the result was refused: {e}")
                return EXIT_REFUSED
            say("the result is settled: the provision is ending")
        except StrandedError as e:
            say(f"the result could not be reported: {e}")
            return EXIT_STRANDED
        else:
            say(f"reported {body['result']}, exit code {code}")
        return code


CLAIM = "KICI_SCALER_CLAIM_CODE"
COMMAND = "HATCHWAY_AGENT_COMMAND"


def _command(arguments: list[str]) -> list[str] | None:
    if arguments:
        return arguments
    text = os.environ.get(COMMAND, "")
    if not text:
        return None
    try:
        command = json.loads(text)
    except ValueError:
        command = None
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise UsageError(f'{COMMAND} must be a JSON array of strings, such as ["/bin/sh", "-c", "make test"]')
    return command


def _stranded_s() -> float:
    text = os.environ.get("HATCHWAY_STRANDED_SECONDS", "")
    if not text:
        return STRANDED_S
    seconds = _seconds(text, 7 * 86_400.0)
    if seconds <= 0:
        raise UsageError("HATCHWAY_STRANDED_SECONDS must be a number of seconds above 0")
    return seconds


def main(argv: list[str] | None = None) -> int:
    """Run one agent and return its exit code. Must be called in the main thread: it handles SIGTERM and SIGINT."""
    parser = argparse.ArgumentParser(prog="hatchway agent", description="Run one command as a Hatchway agent.")
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run; none: serve")
    arguments = parser.parse_args(argv).command
    if arguments and arguments[0] == "--":
        arguments = arguments[1:]
    # Taken out first, so that nothing that starts from here on inherits it.
    claim = os.environ.pop(CLAIM, "")
    try:
        command = _command(arguments)
        gateways = Gateways(os.environ.get("KICI_ORCHESTRATOR_URL", ""))
        if not claim:
            raise UsageError(f"{CLAIM} is not set: the worker that spawns an agent puts it there")
        agent = Agent(gateways, command, _stranded_s())
    except UsageError as e:
        say(str(e))
        return EXIT_USAGE
    _hear((signal.SIGTERM, signal.SIGINT), agent.terminate)
    return agent.run(claim)


def _hear(numbers: tuple[int, ...], told: Callable[[int], None]) -> None:
    """From now on each of these signals calls `told` with its number, in a thread of its own.

    Not from a signal handler: that runs inside the main thread wherever it happens to be, and where that was about to
    wait for an event it holds the lock that setting the event takes. Such an agent would never end.
    """
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)

    def listen() -> None:
        while True:
            for number in os.read(heard, 64):
                told(number)

    threading.Thread(target=listen, name="signals", daemon=True).start()


def _exit() -> NoReturn:
    code = main()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    # Not sys.exit: a heartbeat may still be inside a call, and interpreter shutdown would wait on its locks.
    os._exit(code)


if __name__ == "__main__":
    _exit()
