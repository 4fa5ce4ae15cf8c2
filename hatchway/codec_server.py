"""The codec endpoint that Temporal's UI and command line ask to show encrypted payloads in the clear.

    POST /decode            {"payloads": [{"metadata": {"encoding": base64, …}, "data": base64}, …]}, with the token
    POST /<token>/decode    the same, for the UI, which can be told an address and no header

It decrypts and does not encrypt: what people send by hand goes through the `hatchway` commands, which encrypt by
themselves, and a door that only shows cannot be used to forge. Loopback only, a token always, and answers to pages of
listed origins only: every page that a browser on this machine opens may send requests to loopback.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from hatchway.codec import EncryptingCodec, PayloadKeyMissing, is_encrypted, key_id_of

MOST_BYTES = 32 * 1024 * 1024
"""A page of a history: Temporal's own limit of a message is 4 MiB, and a UI may ask for several at once."""
SOCKET_S = 10.0
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


@dataclass(frozen=True)
class Settings:
    """Where it listens, and for whom."""

    port: int
    token: str = field(repr=False)
    origins: frozenset[str] = frozenset()
    """Of pages that may ask, as in `http://localhost:8233`."""


class CodecServer(ThreadingHTTPServer):
    """Serves until `shutdown`. Nothing of what passes through is logged."""

    daemon_threads = True

    def __init__(self, settings: Settings, codec: EncryptingCodec) -> None:
        """Raises OSError when the port is taken."""
        self.settings = settings
        self.codec = codec
        super().__init__(("127.0.0.1", settings.port), _Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One line, and none for a client that went away. Whatever else is known of it may hold what was asked."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"hatchway codec-server: a request failed ({type(error).__name__})", file=sys.stderr, flush=True)

    async def decoded(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Each in the clear; one that cannot be is replaced by a sentence that says why, and hides no other."""
        return [await self._decoded(payload) for payload in payloads]

    async def _decoded(self, payload: Payload) -> Payload:
        try:
            (clear,) = await self.codec.decode([payload])
        except PayloadKeyMissing as e:
            return _said(str(e))
        if is_encrypted(clear):
            return _said(f"it is not what was encrypted with the key {key_id_of(payload)!r}: it was altered or cut")
        return clear


def _said(sentence: str) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(f"cannot be decrypted: {sentence}").encode())


def _object(body: bytes) -> dict[str, Any]:
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


class _Handler(BaseHTTPRequestHandler):
    server: CodecServer
    timeout = SOCKET_S
    protocol_version = "HTTP/1.1"

    def version_string(self) -> str:
        return "hatchway"

    def do_OPTIONS(self) -> None:
        """A browser asks whether a page may ask."""
        if self._refused_host() or not self._may_ask():
            return self._answer(HTTPStatus.FORBIDDEN, {"message": "pages of this origin may not ask"})
        return self._answer(HTTPStatus.NO_CONTENT, None)

    def do_POST(self) -> None:
        if self._refused_host() or not self._may_ask():
            return self._answer(HTTPStatus.FORBIDDEN, {"message": "pages of this origin may not ask"})
        *token, call = self.path.partition("?")[0].strip("/").split("/")
        if not self._knows_the_token(token):
            return self._answer(HTTPStatus.UNAUTHORIZED, {"message": "the token is missing or wrong"})
        if call == "encode":
            return self._answer(HTTPStatus.NOT_FOUND, {"message": "this endpoint decrypts only; use the hatchway CLI"})
        if call != "decode":
            return self._answer(HTTPStatus.NOT_FOUND, {"message": "there is /decode, and nothing else"})
        return self._decode()

    def _decode(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            return self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"message": "say a length, of at most 32 MiB"})
        try:
            asked = json_format.ParseDict(_object(self.rfile.read(int(length))), Payloads())
        except (json_format.ParseError, ValueError, RecursionError):  # whose text quotes what it was given
            return self._answer(HTTPStatus.BAD_REQUEST, {"message": "the body is no list of payloads"})
        clear = asyncio.run(self.server.decoded(asked.payloads))
        return self._answer(HTTPStatus.OK, json_format.MessageToDict(Payloads(payloads=clear)))

    def _knows_the_token(self, path: list[str]) -> bool:
        scheme, _, bearer = self.headers.get("Authorization", "").partition(" ")
        given = [bearer.strip()] if scheme.lower() == "bearer" else []
        given += path[:1] if len(path) == 1 else []
        expected = self.server.settings.token.encode()
        return any(hmac.compare_digest(one.encode(errors="replace"), expected) for one in given)

    def _refused_host(self) -> bool:
        """A page can have its own name resolve to loopback; the browser then sends that name."""
        return self.headers.get("Host", "").rpartition(":")[0] not in LOOPBACK

    def _may_ask(self) -> bool:
        """Programs send no origin; browsers always do, and it must be listed."""
        origin = self.headers.get("Origin")
        return origin is None or origin in self.server.settings.origins

    def _answer(self, status: HTTPStatus, body: dict[str, Any] | None) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        origin = self.headers.get("Origin")
        self.send_header("Vary", "Origin")
        if origin is not None and self._may_ask():
            self.send_header("Access-Control-Allow-Origin", origin)
            self.send_header("Access-Control-Allow-Methods", "POST")
            self.send_header("Access-Control-Allow-Headers", "authorization, content-type, x-namespace")
            self.send_header("Access-Control-Allow-Private-Network", "true")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")  # a body that was not read must not be taken for the next request
        self.close_connection = True
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a path may hold the token."""
