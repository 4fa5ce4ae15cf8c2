"""Events as signed HTTPS requests. Nothing is followed, nothing is guessed, and no answer is read without an end.

The request goes to an address that was checked (`event_addresses`), with the name in TLS and in `Host`: the
certificate must be the name's. No proxy of the worker's environment is used, since it would resolve the name again.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx

from hatchway.backends.errors import quoted
from hatchway.backends.event_addresses import Address, Network, checked_addresses
from hatchway.backends.event_targets import HttpsTarget
from hatchway.errors import PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from hatchway.event_signatures import WeakKey, sign
from hatchway.events import ScaleDown, ScaleUp
from hatchway.foreign_json import parse_foreign
from hatchway.secrets.secret import Secret

CONNECT_S = 5.0
WHOLE_S = 15.0
"""Seconds from the first connection to the last byte of the answer."""
MOST_ANSWER = 16 * 1024
"""Bytes of an answer that are read; more of it would only be cut later."""
LONGEST_SECRET = 1024
"""Bytes at the end of an answer that was not read to its end: what begins there may be half of a secret."""
MOST_WORDS = 300
LONGEST_PAUSE = timedelta(minutes=5)
"""Of `Retry-After`: a longer one is taken for this."""

_ESCAPED = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|/)")
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


async def post_event(
    target: HttpsTarget,
    event: ScaleUp | ScaleDown,
    key: Secret,
    *,
    allowed: Sequence[Network],
    tls: ssl.SSLContext,
) -> None:
    """Return once the receiver has answered 2xx. Raises SpawnError."""
    body = event.to_json()
    try:
        headers = sign(event.name.value, body, key.reveal())
    except WeakKey as e:
        raise PermanentSpawnError(SpawnCode.INVALID_SPEC, f"{target}: {e}") from None
    headers |= {"Content-Type": "application/json", "Hatchway-Request-Id": event.request_id}
    addresses = await checked_addresses(target.host, target.port, allowed)
    try:
        async with asyncio.timeout(WHOLE_S), _client(tls) as client:
            status, answered, read = await _to_one_of(client, target, addresses, body, headers)
    except TimeoutError:
        raise _away(target, f"did not answer within {WHOLE_S:g} s") from None
    except httpx.HTTPError as e:
        raise _of_connection(target, e) from None
    except httpx.InvalidURL:
        raise PermanentSpawnError(
            SpawnCode.INVALID_SPEC, f"{target} names a host that nobody can be asked at"
        ) from None
    if not 200 <= status < 300:
        # A receiver may quote what it was sent, and what it signs with.
        sent = [key.reveal(), *([event.claim_code] if isinstance(event, ScaleUp) else [])]
        raise _of_status(target, status, answered, _reason(read, sent))


def _client(tls: ssl.SSLContext) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        verify=tls, trust_env=False, follow_redirects=False, timeout=httpx.Timeout(WHOLE_S, connect=CONNECT_S)
    )


async def _to_one_of(
    client: httpx.AsyncClient,
    target: HttpsTarget,
    addresses: Sequence[Address],
    body: bytes,
    headers: Mapping[str, str],
) -> tuple[int, httpx.Headers, str]:
    """The answer of the first address that takes a connection."""
    for number, address in enumerate(addresses, 1):
        url = httpx.URL(target.url)
        there = url.copy_with(host=str(address))
        request = client.build_request(
            "POST", there, content=body, headers={**headers, "Host": url.netloc.decode("ascii")},
            extensions={"sni_hostname": url.raw_host.decode("ascii").strip("[]")},
        )  # fmt: skip
        try:
            answer = await client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            if number == len(addresses):
                raise
            continue
        try:
            # Taken is taken: nothing in the body of a 2xx counts, and one that is slow or cut off undoes nothing.
            read = "" if answer.is_success else await _read(answer)
            return answer.status_code, answer.headers, read
        finally:
            await answer.aclose()
    raise AssertionError("checked_addresses answers at least one")


async def _read(answer: httpx.Response) -> str:
    """The beginning of it, as far as people read it. Compressed ones are not unpacked: a bomb is small, too."""
    read = b""
    async for chunk in answer.aiter_raw():
        read += chunk
        if len(read) > MOST_ANSWER:
            read = read[: MOST_ANSWER - LONGEST_SECRET]
            break
    if answer.headers.get("content-encoding", "identity") != "identity":
        return ""
    return read.decode("utf-8", "replace")


def _reason(text: str, sent: Sequence[str]) -> str:
    """The `message` or `error` of a JSON answer, else its text; in one line, without what was `sent`."""
    try:
        parsed = parse_foreign(text)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict):
        text = next((str(parsed[key]) for key in ("message", "error") if parsed.get(key)), text)
    # A second time where it was parsed: JSON may hold JSON.
    return quoted(_ESCAPED.sub(_unescaped, text), MOST_WORDS, sent)


def _unescaped(found: re.Match[str]) -> str:
    """JSON's spellings of one character, which hide what is searched for, in a text that need not be whole JSON."""
    digits = found[1]
    return chr(int(digits, 16)) if digits else "/"


def _of_status(target: HttpsTarget, status: int, headers: httpx.Headers, said: str) -> SpawnError:
    answer = f"{target} answered {status}" + (f": {said}" if said else "")
    if status in _AGAIN:
        code = SpawnCode.RATE_LIMITED if status == 429 else SpawnCode.DAEMON_UNAVAILABLE
        return TransientSpawnError(code, answer, _retry_after(headers.get("retry-after", "")))
    if 300 <= status < 400:
        return PermanentSpawnError(
            SpawnCode.INVALID_SPEC, f"{target} answered {status}: redirects are not followed, name the final address"
        )
    if status in (401, 403):
        return PermanentSpawnError(SpawnCode.AUTH_DENIED, answer)
    return PermanentSpawnError(SpawnCode.PROVISIONER_FAILED, answer)


def _retry_after(value: str) -> timedelta | None:
    """Seconds or an HTTP date (RFC 9110 10.2.3); None for none, or for what cannot be read."""
    if value.isascii() and value.isdecimal() and len(value) < 10:
        return min(timedelta(seconds=int(value)), LONGEST_PAUSE)
    try:
        pause = parsedate_to_datetime(value) - datetime.now(UTC)
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(pause, timedelta(0)), LONGEST_PAUSE)


def _of_connection(target: HttpsTarget, error: httpx.HTTPError) -> SpawnError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return PermanentSpawnError(
                SpawnCode.INVALID_SPEC,
                f"the certificate of {target} is not to be trusted: {cause.verify_message}; where its authority is "
                "your own, name it in the target's `caFile`",
            )
        cause = cause.__cause__ or cause.__context__
    return _away(target, f"cannot be reached ({type(error).__name__})")


def _away(target: HttpsTarget, what: str) -> TransientSpawnError:
    return TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, f"{target} {what}")
