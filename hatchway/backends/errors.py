"""What every backend needs to speak of a failure safely: redaction, a bounded log tail, and what an OSError means.

Output of an agent is foreign text. It can hold any secret that the spawn handled, in whatever encoding a tool printed
it, and control characters that rewrite the terminal of whoever reads it.
"""

from __future__ import annotations

import base64
import errno
import json
import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from hatchway.backends.hidden_claims import claims_in
from hatchway.errors import PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError

MASK = "[redacted]"
TAIL_LINES = 50
TAIL_BYTES = 8 * 1024

# An encoded form of a very short value is two or three letters: it would blank out half of an innocent log.
_SHORTEST_ENCODED = 6
_SHORTEST_LINE = 8

# CSI and OSC sequences whole, then any other two-character escape: stripping only ESC would leave "[31m" behind.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")

_SPACES = re.compile(r"\s+")

CLAIM = re.compile(r"(?<![\w-])[\w-]{43}(?![\w-])", re.ASCII)
"""What a claim code looks like: 32 bytes in base64url. Who was given one may quote it when its spawn is long over."""

_SEARCHED = 512 * 1024
"""Characters of a stranger's words that are looked at."""
_LONGEST_SECRET = 192 * 1024
"""Characters at the end of those which may be half of a secret: one has 64 KiB at most, and in percents thrice that."""
_LONGEST_CLAIM = 1024
"""Characters, whichever way a claim code is spelled: 43 with six for each are 258, and base64 has lines between."""

_ESCAPED_ONLY = re.compile("[^\ud800-\udc7f\udd00-\udfff]*")

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_ROOM = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


def redaction_forms(secrets: Iterable[str]) -> tuple[str, ...]:
    """Every spelling of the secrets that a log is searched for, the longest first.

    Beside the value itself: URL-encoded, JSON-escaped, hexadecimal, base64 in both alphabets and at all three
    alignments (`user:secret` encoded as one shifts the secret's own bytes), and each long line of a multi-line value.
    """
    forms: set[str] = set()
    for secret in secrets:
        if not secret:
            continue
        forms.add(secret)
        forms.update(line for line in secret.splitlines() if len(line) >= _SHORTEST_LINE)
        if len(secret) >= _SHORTEST_ENCODED:
            forms.update(form for form in _encodings(secret) if len(form) >= _SHORTEST_ENCODED)
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _encodings(secret: str) -> Iterable[str]:
    # Bytes that were no UTF-8 come back as they were, and half a surrogate pair is written somehow: whoever masks a
    # failure must not fail on it.
    raw = secret.encode("utf-8", "surrogateescape" if _ESCAPED_ONLY.fullmatch(secret) else "surrogatepass")
    yield quote(raw, safe="")
    yield quote(raw)
    yield quote_plus(raw)
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield raw.hex()
    yield raw.hex().upper()
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + raw).decode()
        # The outermost characters also carry bits of whatever stands next to the secret: only the inner are its own.
        head = (0, 2, 3)[shift]
        tail = (0, 3, 2)[(shift + len(raw)) % 3]
        inner = encoded[head : len(encoded) - tail]
        yield inner
        yield inner.replace("+", "-").replace("/", "_")


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` with every form of every secret replaced by a mask."""
    for form in redaction_forms(secrets):
        text = text.replace(form, MASK)
    return text


def plain(text: str) -> str:
    """`text` without terminal escapes, control and direction-changing characters. Line breaks and tabs stay."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp"))


def without_claims(text: str) -> str:
    """`text` with whatever looks like a claim code that stands for itself replaced by a mask."""
    return CLAIM.sub(MASK, text)


def without_any_claims(text: str) -> str:
    """`text` with whatever may hold a claim code, in any spelling and company, replaced by a mask.

    For those who do not know the code itself. Two lines that hold one between them become one.
    """
    kept, at = [], 0
    for start, end in claims_in(text):
        kept += [text[at:start], MASK]
        at = end
    return without_claims("".join([*kept, text[at:]]))


def quoted(text: str, most: int, secrets: Iterable[str] = ()) -> str:
    """What a stranger said, for people: one plain line of about `most` characters, secrets and claim codes masked.

    Searched before it is cut: nobody finds half a secret any more.
    """
    secrets = tuple(secrets)
    whole = redact(plain(redact(text[:_SEARCHED], secrets)), secrets)
    if len(text) > _SEARCHED:
        whole = whole[:-_LONGEST_SECRET]
    lines = _SPACES.sub(lambda found: "\n" if "\n" in found[0] else " ", whole)
    near = most + 2 * _LONGEST_CLAIM
    begins = without_any_claims(lines[:near])
    if len(lines) > near:
        begins = begins[:-_LONGEST_CLAIM]
    line = " ".join(begins.split())
    return line if len(line) <= most and len(lines) <= near else line[:most] + "…"


def log_tail(text: str, secrets: Iterable[str] = ()) -> str:
    """The end of an agent's output, fit to leave the host: at most 50 lines and 8 KiB, plain text, secrets masked.

    Redacted before the control characters go and after it: an escape inside a secret hides it from the first look.
    """
    secrets = tuple(secrets)
    text = redact(plain(redact(text, secrets)), secrets)
    lines = text.rstrip().split("\n")[-TAIL_LINES:]
    tail = "\n".join(line.rstrip() for line in lines)
    encoded = tail.encode("utf-8", "replace")
    if len(encoded) > TAIL_BYTES:
        tail = encoded[-TAIL_BYTES:].decode("utf-8", "ignore")
        tail = tail.split("\n", 1)[1] if "\n" in tail else tail
    return tail


def spawn_error_of(e: OSError, doing: str) -> SpawnError:
    """What an OSError of this host means for a spawn. `doing` finishes the sentence "while …"."""
    reason = e.strerror or type(e).__name__
    where = f" ({e.filename})" if e.filename else ""
    if e.errno in _DISK_FULL:
        return TransientSpawnError(
            SpawnCode.DISK_FULL, f"the disk of this host is full, seen while {doing}{where}: free some space there"
        )
    if e.errno in _NO_ROOM:
        return TransientSpawnError(
            SpawnCode.CAPACITY, f"this host is out of processes, memory or files, seen while {doing}{where}: {reason}"
        )
    return PermanentSpawnError(SpawnCode.INVALID_SPEC, f"this host refused while {doing}{where}: {reason}")
