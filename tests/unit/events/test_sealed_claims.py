"""Sealed claims: opened by the right key for the right agent, and by nothing else."""

from __future__ import annotations

import base64

import pytest

from hatchway.sealed_claims import (
    PREFIX,
    CannotOpenClaim,
    ClaimKeyError,
    new_claim_keys,
    open_claim,
    parse_claim_key,
    seal_claim,
)

CLAIM = "the-claim-code-0123456789"
AGENT = "scaler-1"
PRIVATE, PUBLIC = new_claim_keys()


def test_who_has_the_key_opens_it() -> None:
    sealed = seal_claim(CLAIM, PUBLIC, AGENT)

    assert open_claim(sealed, PRIVATE, AGENT) == CLAIM
    assert CLAIM not in sealed
    assert len(sealed) < 200, "it has to fit wherever a claim code does"


def test_the_same_code_is_sealed_to_another_text_each_time() -> None:
    assert len({seal_claim(CLAIM, PUBLIC, AGENT) for _ in range(5)}) == 5


def test_one_of_several_keys_will_do() -> None:
    other, _ = new_claim_keys()

    assert open_claim(seal_claim(CLAIM, PUBLIC, AGENT), [other, PRIVATE], AGENT) == CLAIM


def _changed(sealed: str, at: int) -> str:
    raw = bytearray(base64.urlsafe_b64decode(sealed.removeprefix(PREFIX) + "=="))
    raw[at] ^= 1
    return PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")


@pytest.mark.parametrize("at", [0, 31, 32, -1], ids=["ephemeral key", "its end", "ciphertext", "tag"])
def test_what_was_changed_on_its_way_does_not_open(at: int) -> None:
    with pytest.raises(CannotOpenClaim):
        open_claim(_changed(seal_claim(CLAIM, PUBLIC, AGENT), at), PRIVATE, AGENT)


@pytest.mark.parametrize(
    "value", [CLAIM, "", "sealed.v2.abc", PREFIX, PREFIX + "abc", PREFIX + "!!", PREFIX + "A" * 43]
)
def test_what_is_not_sealed_does_not_open_and_is_not_quoted(value: str) -> None:
    with pytest.raises(CannotOpenClaim) as raised:
        open_claim(value, PRIVATE, AGENT)

    assert CLAIM not in str(raised.value)


def test_another_agents_or_another_keys_does_not_open() -> None:
    sealed, (stranger, _) = seal_claim(CLAIM, PUBLIC, AGENT), new_claim_keys()

    for key, agent in ((PRIVATE, "scaler-2"), (stranger, AGENT)):
        with pytest.raises(CannotOpenClaim):
            open_claim(sealed, key, agent)


@pytest.mark.parametrize(
    "key", ["", "hunter2!", "aHVudGVyMg==", PUBLIC[:-4]], ids=["empty", "a password", "a short one", "one cut off"]
)
def test_what_is_no_key_is_said_so_and_not_quoted(key: str) -> None:
    with pytest.raises(ClaimKeyError, match="hatchway claim-keys") as raised:
        parse_claim_key(key)

    assert not key or key not in str(raised.value)


def test_a_point_that_gives_everybody_the_same_secret_is_no_key() -> None:
    with pytest.raises(ClaimKeyError, match="nobody can seal to"):
        seal_claim(CLAIM, base64.b64encode(bytes(32)).decode(), AGENT)


def test_a_seal_of_this_very_format_opens() -> None:
    """Sealed by the first release that could: a customer's workers may be newer, or older, than Hatchway."""
    private = "eRTNz6BJ0y1mVvb8Uzq2D9Hj0hZ4wB0m3zT5sX8pQ0c="
    sealed = GOLDEN

    assert open_claim(sealed, private, AGENT) == CLAIM


GOLDEN = "sealed.v1.Tfyrm77GjMKr7eqwsZlChWrZxnOl6Mp4ri4q7J1TETOifpzfTJW4nCTpxrreWK2VompETFyL_QFa2s5FJaijZG5QOSaG5o_vZg"
