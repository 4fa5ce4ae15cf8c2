"""A gateway that can be told to misbehave: it answers by script, and remembers every call."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REDEEM, REGISTER = "/v1/claims/redeem", "/v1/agents/register"
HEARTBEAT, COMPLETE = "/v1/agents/heartbeat", "/v1/agents/complete"
TOKEN = "marker-token-8c1d5f0e6b7a49d2b3c4e5f60718293a"


@dataclass(frozen=True)
class Call:
    path: str
    body: dict[str, Any]
    authorization: str | None


@dataclass
class Answer:
    """One answer. `cut`: the connection ends without it. `drip_s`: a byte at a time, so far apart."""

    status: int = 200
    body: dict[str, Any] | str = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    drip_s: float = 0.0


def error(status: int, name: str, **headers: str) -> Answer:
    return Answer(status, {"error": name, "message": f"the fake gateway says {name}"}, dict(headers))


class FakeGateway:
    """Answers like a gateway with one agent, except where `script` holds something else for a path's next calls.

    What a test waits for goes through `wait_until`, which looks again on each call, and in between.
    """

    def __init__(self, heartbeat_s: float = 0.05, job_id: str | None = "job-1") -> None:
        self.calls: list[Call] = []
        self.script: dict[str, deque[Answer]] = defaultdict(deque)
        self.always: dict[str, Answer] = {
            REDEEM: Answer(body={"agent_id": "scaler-1", "token": TOKEN, "heartbeat_interval_s": heartbeat_s}),
            REGISTER: Answer(
                body={
                    "agent_id": "scaler-1", "scaler": "s", "labels": ["linux"], "mandatory_labels": [],
                    "job_id": job_id, "run_id": None, "role": None,
                    "heartbeat_interval_s": heartbeat_s, "heartbeat_timeout_s": 3 * heartbeat_s,
                }
            ),
            HEARTBEAT: Answer(body={"drain": False, "next_in_s": heartbeat_s}),
            COMPLETE: Answer(body={"result": "succeeded"}),
        }  # fmt: skip
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def paths(self) -> list[str]:
        """The calls so far, repeated ones in a row told once."""
        paths = [c.path for c in self.calls]
        return [p for i, p in enumerate(paths) if i == 0 or paths[i - 1] != p]

    def of(self, path: str) -> list[Call]:
        return [c for c in self.calls if c.path == path]

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not condition():
                assert time.monotonic() < deadline, f"it never came to that; calls: {self.paths()}"
                self._changed.wait(0.05)

    def stop(self) -> None:
        """Close the listening socket: from here on connections are refused. May be called twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def _next(self, call: Call) -> Answer:
        with self._changed:
            self.calls.append(call)
            scripted = self.script[call.path]
            answer = scripted.popleft() if scripted else self.always[call.path]
            self._changed.notify_all()
        return answer

    def _handler(gateway: FakeGateway) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler has the name self
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                answer = gateway._next(Call(self.path, json.loads(raw), self.headers.get("Authorization")))
                if answer.cut:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                content = answer.body.encode() if isinstance(answer.body, str) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if answer.drip_s:
                    self._drip(content, answer.drip_s)
                else:
                    self.wfile.write(content)

            def _drip(self, content: bytes, every_s: float) -> None:
                try:
                    for byte in content:
                        self.wfile.write(bytes([byte]))
                        self.wfile.flush()
                        time.sleep(every_s)
                except OSError:
                    return  # the agent lost its patience, which is what the test wants to see

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: the calls are on record."""

        return Handler


def refused_url() -> str:
    """An address of this machine where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"
