"""The outermost layer: bounded bodies, JSON only, and a last word on what nobody else caught."""

from __future__ import annotations

import asyncio
import re
import traceback

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hatchway.gateway.errors import render

MAX_BODY = 64 * 1024
MAX_DISCARDED = 1024 * 1024
"""How much of a body that is too large is still read and dropped: closing on a writer loses it the answer."""
BODY_TIMEOUT_S = 10.0
"""From the headers to the last byte; a body this small that takes longer holds a connection for nothing."""
LONG_WORD = re.compile(r"[A-Za-z0-9+/=_-]{32,}")
"""Claim codes, tokens, nonces and their hashes are all at least this long, and no name of ours is."""

log = structlog.get_logger(__name__)


class Intake:
    """Reads the whole body before the application sees the request, so the limit holds for chunked bodies too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = _refuse_by_headers(scope)
        body = b""
        if refusal is None:
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    body = await _read(receive)
            except _Disconnected:
                return
            except TimeoutError:
                refusal = (408, "timeout", f"the body did not arrive within {BODY_TIMEOUT_S:g} s")
            except _TooLarge:
                refusal = TOO_LARGE
        if refusal is not None:
            # The rest of the body is not read, so the connection cannot carry another request.
            await render(*refusal, {"Connection": "close"})(scope, receive, send)
            return
        await self._guarded(scope, _replay(body, receive), send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        # Whatever it is, it must not reach the server's own log, which prints messages that can quote a request.
        except Exception as e:
            log.error("gateway_bug", path=scope["path"], **described(e))
            if not started:
                message = "the gateway failed on this call; its log says where"
                await render(500, "internal", message)(scope, receive, send)


def described(e: BaseException) -> dict[str, str]:
    """An exception for the log: its type, its message without anything as long as a secret, and where it was raised."""
    return {
        "error": type(e).__name__,
        "reason": LONG_WORD.sub("<redacted>", str(e)),
        "frames": "".join(traceback.format_tb(e.__traceback__)),
    }


class _TooLarge(Exception):
    pass


class _Disconnected(Exception):
    pass


TOO_LARGE = (413, "too_large", f"the body may hold at most {MAX_BODY} bytes")


def _refuse_by_headers(scope: Scope) -> tuple[int, str, str] | None:
    headers = {name: value for name, value in scope["headers"] if name in (b"content-length", b"content-type")}
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > MAX_DISCARDED:
        return TOO_LARGE
    media_type = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if scope["method"] == "POST" and media_type != b"application/json":
        return 415, "not_json", "the body must be JSON: send Content-Type: application/json"
    return None


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    read = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Disconnected
        chunk = message.get("body", b"")
        read += len(chunk)
        if read <= MAX_BODY:
            body += chunk
        if read <= MAX_DISCARDED and message.get("more_body", False):
            continue
        if read > MAX_BODY:
            raise _TooLarge
        return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    handed_over = False

    async def again() -> Message:
        nonlocal handed_over
        if handed_over:
            return await receive()
        handed_over = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
