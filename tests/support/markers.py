"""Marker secrets: how one may be spelled, and where it is looked for.

The spellings are worked out here by themselves, not by the product's own redaction: a spelling that it forgets must be
found by the search.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, quote_plus


def marker(name: str) -> str:
    """A secret that no other text holds, with characters that every escaping changes."""
    return f'{name}/+"&={secrets.token_hex(12)}~?\\é'


def spellings(secret: str) -> dict[str, bytes]:
    """Name of the spelling -> the bytes that are searched for."""
    raw = secret.encode()
    found = {
        "raw": raw,
        "hex": raw.hex().encode(),
        "HEX": raw.hex().upper().encode(),
        "URL-encoded": quote(secret, safe="").encode(),
        "URL-encoded path": quote(secret).encode(),
        "form-encoded": quote_plus(secret).encode(),
        "JSON": json.dumps(secret)[1:-1].encode(),
        "JSON in UTF-8": json.dumps(secret, ensure_ascii=False)[1:-1].encode(),
        "JSON in JSON": json.dumps(json.dumps(secret))[3:-3].encode(),
        # Whatever escaping surrounds it, the longest run of plain characters stays as it is.
        "its longest plain run": max(re.findall(r"[A-Za-z0-9_-]+", secret), key=len).encode(),
    }
    for offset in range(3):
        inner = _base64_at(raw, offset)
        found[f"base64 at {offset}"] = inner
        found[f"URL-safe base64 at {offset}"] = inner.translate(bytes.maketrans(b"+/", b"-_"))
    return found


def _base64_at(raw: bytes, offset: int) -> bytes:
    """The characters of a base64 text that belong to `raw` alone, where `offset` bytes stand before it."""
    encoded = base64.b64encode(bytes(offset) + raw)
    whole = (offset + len(raw)) // 3 * 4
    return encoded[(0, 2, 3)[offset] : whole]


@dataclass
class Place:
    """One kind of place: where exactly -> what is there."""

    name: str
    parts: dict[str, bytes] = field(default_factory=dict)

    def add(self, where: str, content: bytes) -> None:
        """Adds to what is there already, with a gap, so that two halves cannot meet."""
        self.parts[where] = self.parts.get(where, b"") + b"\0\0" + content


def hits(places: Iterable[Place], wanted: Mapping[str, str]) -> list[str]:
    """One line for each secret that is found, with the place and the spelling, and never the secret.

    `wanted` is the secret's name -> the secret.
    """
    needles = [(name, how, needle) for name, secret in wanted.items() for how, needle in spellings(secret).items()]
    return [
        f"{place.name}: {where} holds {name} ({how})"
        for place in places
        for where, content in place.parts.items()
        for name, how, needle in needles
        if needle in content
    ]


class Overheard:
    """What passed between agents and the gateway: where claims and tokens are seen in the clear."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def secrets(self) -> dict[str, str]:
        heard = b"\n".join(self.chunks).decode(errors="replace")
        found = {
            "claim code": re.findall(r'"claim_code": ?"([^"]+)"', heard),
            "nonce": re.findall(r'"nonce": ?"([^"]+)"', heard),
            "token": [*re.findall(r'"token": ?"([^"]+)"', heard), *re.findall(r"Authorization: Bearer (\S+)", heard)],
        }
        return {
            f"{name} {number}": value
            for name, values in found.items()
            for number, value in enumerate(dict.fromkeys(values), 1)
        }


def pieces_of(codes: Mapping[str, str]) -> dict[str, str]:
    """What may not be found either: a part of a code. A claim's first 12 characters are stored and logged on purpose,
    and not one more.
    """
    return {
        f"piece of {name}": code[12:24] if name.startswith("claim code") else code[:16] for name, code in codes.items()
    }
