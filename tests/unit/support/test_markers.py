"""The search for marker secrets finds what it is there to find: else "no hit" would mean nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from tests.support.markers import Place, hits, marker


def _embedded(before: int, after: int) -> Callable[[str], bytes]:
    return lambda secret: base64.b64encode(b"x" * before + secret.encode() + b"y" * after)


SPELT: dict[str, Callable[[str], bytes]] = {
    "raw": lambda s: s.encode(),
    "hex": lambda s: s.encode().hex().encode(),
    "upper-case hex": lambda s: s.encode().hex().upper().encode(),
    "in a URL": lambda s: quote(s, safe="").encode(),
    "in a form": lambda s: quote_plus(s).encode(),
    "in JSON": lambda s: json.dumps({"a": s}).encode(),
    "in JSON in JSON": lambda s: json.dumps(json.dumps({"a": s})).encode(),
    "as a Python repr": lambda s: repr(s).encode(),
    **{
        f"base64 with {before} bytes before and {after} after": _embedded(before, after)
        for before in range(4)
        for after in range(3)
    },
    "URL-safe base64 of user:secret": lambda s: base64.urlsafe_b64encode(f"user:{s}".encode()),
}


@pytest.mark.parametrize("spelt", SPELT.values(), ids=SPELT.keys())
def test_a_marker_is_found_in_every_spelling(spelt: Callable[[str], bytes]) -> None:
    secret = marker("password")
    place = Place("a log")
    place.add("line 7", b"before " + spelt(secret) + b" after")

    found = hits([place], {"the password": secret})

    assert found
    assert all(line.startswith("a log: line 7 holds the password") for line in found)
    assert secret not in "".join(found)


@pytest.mark.parametrize("spelt", SPELT.values(), ids=SPELT.keys())
def test_another_marker_is_not_taken_for_it(spelt: Callable[[str], bytes]) -> None:
    place = Place("a log")
    place.add("line 7", spelt(marker("password")))

    assert hits([place], {"the password": marker("password")}) == []


def test_the_end_of_one_part_and_the_beginning_of_the_next_make_no_marker() -> None:
    secret = "0123456789abcdef0123456789abcdef"
    place = Place("a log")
    place.add("line 7", secret[:16].encode())
    place.add("line 7", secret[16:].encode())

    assert hits([place], {"the password": secret}) == []
