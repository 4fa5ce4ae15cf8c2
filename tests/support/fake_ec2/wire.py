"""The EC2 query protocol, as far as a client of six actions can tell: form parameters in, XML out, over HTTP."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
Parameters = dict[str, str]
Answer = dict[str, Any]


class Refused(Exception):
    """The call is answered with this error."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(code)
        self.code = code
        self.message = message
        self.status = status


class Lost(Exception):
    """The caller hears nothing: the connection is closed."""


def numbered(parameters: Parameters, prefix: str) -> list[str]:
    """`Prefix.1`, `Prefix.2`, … in order."""
    found = {int(m[1]): v for k, v in parameters.items() if (m := re.fullmatch(re.escape(prefix) + r"\.(\d+)", k))}
    return [found[number] for number in sorted(found)]


def grouped(parameters: Parameters, prefix: str) -> list[Parameters]:
    """`Prefix.1.Name`, `Prefix.1.Value.1`, …: for each number what is below it."""
    groups: dict[int, Parameters] = {}
    for key, value in parameters.items():
        if found := re.fullmatch(re.escape(prefix) + r"\.(\d+)\.(.+)", key):
            groups.setdefault(int(found[1]), {})[found[2]] = value
    return [groups[number] for number in sorted(groups)]


def xml(value: Any) -> str:
    """Mappings as elements, lists as `item` elements, None as nothing."""
    if isinstance(value, dict):
        return "".join(f"<{k}>{xml(v)}</{k}>" for k, v in value.items() if v is not None)
    if isinstance(value, list):
        return "".join(f"<item>{xml(v)}</item>" for v in value)
    if isinstance(value, bool):
        return str(value).lower()
    return escape(str(value))


def _request_id() -> str:
    return str(uuid.uuid4())


@contextmanager
def serving(act: Callable[[str, Parameters], Answer]) -> Iterator[str]:
    """A door to `act` on a free port of loopback; its URL. `act` raises Refused and Lost."""

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            parameters = dict(parse_qsl(body, keep_blank_values=True))
            action = parameters.pop("Action", "")
            parameters.pop("Version", None)
            try:
                answer = act(action, parameters)
            except Lost:
                self.close_connection = True
                return
            except Refused as e:
                error = xml({"Errors": {"Error": {"Code": e.code, "Message": e.message}}, "RequestID": _request_id()})
                self._reply(e.status, f"<Response>{error}</Response>")
                return
            inner = xml({"requestId": _request_id(), **answer})
            self._reply(200, f'<{action}Response xmlns="{NAMESPACE}">{inner}</{action}Response>')

        def _reply(self, status: int, text: str) -> None:
            body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
            with suppress(OSError):  # whoever asked is gone, which is the point of this cloud
                self.send_response(status)
                self.send_header("content-type", "text/xml;charset=UTF-8")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet: the cloud counts its calls."""

    server = _Server(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
