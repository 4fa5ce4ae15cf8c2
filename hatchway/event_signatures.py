"""How an event on its way to an `https:` target is signed, and how the customer's side checks it.

    Hatchway-Event:      kici.scaler.scale-up
    Hatchway-Timestamp:  1767225600                    seconds since 1970, of the signing
    Hatchway-Signature:  v1=<hex HMAC-SHA256 of "v1:<timestamp>:<event>:" and the body's bytes>[, v1=…]

The timestamp is signed with the rest: what is replayed after the window is refused, and what is replayed within it
bears a `requestId` that the receiver has seen. Standard library only, so that a receiver can take this file as it is.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta

EVENT = "Hatchway-Event"
TIMESTAMP = "Hatchway-Timestamp"
SIGNATURE = "Hatchway-Signature"

WINDOW = timedelta(minutes=5)
"""How far the two clocks may be apart, travel included. As wide as the field's other webhooks have it."""

SHORTEST_KEY = 16  # bytes


class BadSignature(Exception):
    """The request is not one of Hatchway's, or not of now. Answer 401 and do nothing. Never quotes what was sent."""


class WeakKey(ValueError):
    """The signing key is too short to be one."""


def sign(event: str, body: bytes, key: str, *, now: float | None = None) -> dict[str, str]:
    """The three headers. `now`: seconds since 1970. Raises WeakKey."""
    _refuse_weak(key)
    timestamp = str(int(time.time() if now is None else now))
    return {EVENT: event, TIMESTAMP: timestamp, SIGNATURE: f"v1={_mac(timestamp, event, body, key)}"}


def verify(
    headers: Mapping[str, str],
    body: bytes,
    keys: str | Iterable[str],
    *,
    window: timedelta = WINDOW,
    now: float | None = None,
) -> str:
    """The name of a genuine event. `body` is the request's bytes as they came, before anything parsed them.

    `headers` may spell names in any case; `keys` is the signing key, or several while one is replaced.
    Raises BadSignature, and WeakKey: an empty key, as of a variable that is not set, would let anybody sign.
    """
    keys = [keys] if isinstance(keys, str) else list(keys)
    for key in keys:
        _refuse_weak(key)
    found = {name.lower(): value for name, value in headers.items()}
    event, timestamp, signature = (found.get(name.lower(), "") for name in (EVENT, TIMESTAMP, SIGNATURE))
    if not (event and timestamp and signature):
        raise BadSignature(f"one of {EVENT}, {TIMESTAMP} and {SIGNATURE} is missing")
    # A colon would say where the event ends and the body begins. Bytes that are no text come as half characters.
    if ":" in event or not event.isascii():
        raise BadSignature(f"{EVENT} is no event's name")
    if not signature.isascii():
        raise BadSignature(f"{SIGNATURE} is no signature")
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
        raise BadSignature(f"{TIMESTAMP} is no time")
    given = [part.strip().removeprefix("v1=").encode() for part in signature.split(",") if part.strip()[:3] == "v1="]
    wanted = [_mac(timestamp, event, body, key).encode() for key in keys]
    if not any(hmac.compare_digest(one, other) for one in given for other in wanted):
        raise BadSignature("the signature is not of this body, event, time and key")
    if abs((time.time() if now is None else now) - int(timestamp)) > window.total_seconds():
        raise BadSignature(f"it was signed more than {window.total_seconds():.0f} s ago, or the two clocks differ")
    return event


def _refuse_weak(key: str) -> None:
    if len(key.encode()) < SHORTEST_KEY:
        raise WeakKey(f"the signing key is shorter than {SHORTEST_KEY} bytes: `openssl rand -hex 32` makes a good one")


def _mac(timestamp: str, event: str, body: bytes, key: str) -> str:
    return hmac.new(key.encode(), f"v1:{timestamp}:{event}:".encode() + body, hashlib.sha256).hexdigest()
