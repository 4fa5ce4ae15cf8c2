"""Signatures: what a receiver takes for genuine, and what it does not."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from hatchway.event_signatures import BadSignature, WeakKey, sign, verify

KEY, OTHER = "key-of-the-test-0123456789", "another-key-of-the-test-012"
BODY = b'{"agentId":"scaler-1"}'
EVENT = "kici.scaler.scale-up"
NOW = 1_767_225_600.9


def test_the_signature_is_the_documented_one() -> None:
    mac = hmac.new(KEY.encode(), b"v1:1767225600:kici.scaler.scale-up:" + BODY, hashlib.sha256).hexdigest()

    assert sign(EVENT, BODY, KEY, now=NOW) == {
        "Hatchway-Event": EVENT, "Hatchway-Timestamp": "1767225600", "Hatchway-Signature": f"v1={mac}",
    }  # fmt: skip


@pytest.mark.parametrize("keys", [KEY, [OTHER, KEY], (KEY,)])
@pytest.mark.parametrize("spelled", [str.lower, str.upper, str.title])
def test_a_genuine_event_is_told_by_its_name(keys: str | list[str], spelled: object) -> None:
    assert callable(spelled)
    headers = {spelled(name): value for name, value in sign(EVENT, BODY, KEY, now=NOW).items()}

    assert verify(headers, BODY, keys, now=NOW) == EVENT


@pytest.mark.parametrize("late", [-299, 0, 299])
def test_clocks_may_differ_by_five_minutes(late: int) -> None:
    assert verify(sign(EVENT, BODY, KEY, now=NOW), BODY, KEY, now=NOW + late) == EVENT


@pytest.mark.parametrize("late", [-302, 302, 86_400])
def test_what_is_replayed_after_the_window_is_refused(late: int) -> None:
    with pytest.raises(BadSignature, match="signed more than 300 s ago"):
        verify(sign(EVENT, BODY, KEY, now=NOW), BODY, KEY, now=NOW + late)


GENUINE = sign(EVENT, BODY, KEY, now=NOW)
FORGED = {
    "no headers": ({}, BODY),
    "no signature": ({**GENUINE, "Hatchway-Signature": ""}, BODY),
    "another body": (GENUINE, BODY + b" "),
    "another event": ({**GENUINE, "Hatchway-Event": "kici.scaler.scale-down"}, BODY),
    "another time": ({**GENUINE, "Hatchway-Timestamp": "1767225601"}, BODY),
    "no time": ({**GENUINE, "Hatchway-Timestamp": "now"}, BODY),
    "digits of another script": ({**GENUINE, "Hatchway-Timestamp": "١٧٦٧٢٢٥٦٠٠"}, BODY),
    "an endless time": ({**GENUINE, "Hatchway-Timestamp": "1" * 5000}, BODY),
    "another scheme": ({**GENUINE, "Hatchway-Signature": GENUINE["Hatchway-Signature"].replace("v1", "v0")}, BODY),
    "another key": (sign(EVENT, BODY, OTHER, now=NOW), BODY),
    "the body's beginning moved into the name": (
        sign(EVENT, b"a:" + BODY, KEY, now=NOW) | {"Hatchway-Event": f"{EVENT}:a"},
        BODY,
    ),
    "no ASCII": ({**GENUINE, "Hatchway-Signature": "v1=é"}, BODY),
    "no text in the signature": ({**GENUINE, "Hatchway-Signature": "v1=\udcff"}, BODY),
    "no text in the name": ({**GENUINE, "Hatchway-Event": "\udcff"}, BODY),
}


@pytest.mark.parametrize(("headers", "body"), FORGED.values(), ids=FORGED)
def test_a_forged_event_is_refused(headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(BadSignature):
        verify(headers, body, KEY, now=NOW)


def test_a_signature_of_several_may_be_the_genuine_one() -> None:
    headers = {**GENUINE, "Hatchway-Signature": f"v1=00, {GENUINE['Hatchway-Signature']}"}

    assert verify(headers, BODY, KEY, now=NOW) == EVENT


def test_a_key_that_can_be_guessed_signs_nothing() -> None:
    with pytest.raises(WeakKey, match="openssl rand"):
        sign(EVENT, BODY, "hunter2")


@pytest.mark.parametrize("keys", ["", [KEY, ""], ["", KEY], "hunter2"])
def test_a_key_that_can_be_guessed_verifies_nothing(keys: str | list[str]) -> None:
    """As of a variable that is not set: anybody can sign with an empty key."""
    with pytest.raises(WeakKey, match="openssl rand"):
        verify(GENUINE, BODY, keys, now=NOW)
