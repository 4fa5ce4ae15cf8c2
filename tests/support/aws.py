"""A stand-in of AWS on loopback, and servers that answer as AWS does when it will not.

with aws_stand_in() as endpoint:   # moto, in a thread of this process
with Refusing(400, "ThrottlingException") as refusing:
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from moto.server import ThreadedMotoServer

REGION = "eu-central-1"
IDENTITY = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}
"""Takes the place of this machine's own credentials, if it has any."""


@contextmanager
def aws_stand_in() -> Iterator[str]:
    """The address of a moto server. Whoever uses it takes names of their own: all tests share what it holds."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


class Refusing:
    """Answers every call with one refusal, in the JSON protocols' way; the first `times` calls only, where given."""

    def __init__(
        self, status: int, code: str, *, message: str = "", times: int | None = None, then: str = "{}"
    ) -> None:
        self.asked = 0
        self.calls: list[str] = []
        """As `service.Operation`, in AWS's spelling of both."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.asked += 1
                outer.calls.append(self.headers.get("X-Amz-Target", ""))
                refuses = times is None or outer.asked <= times
                body = json.dumps({"__type": code, "message": message}) if refuses else then
                self.send_response(status if refuses else 200)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest's output is for failures."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
