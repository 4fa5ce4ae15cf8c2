from __future__ import annotations

import hashlib
import re

import pytest
from pydantic import TypeAdapter, ValidationError

from hatchway.gateway.credentials import ClaimCode, Nonce, derive_token, digest
from hatchway.gateway.wire import RedeemAnswer, RedeemCall

CODE = "c0de-" + "x" * 38


@pytest.mark.parametrize("nonce", ["Zy" * 11, "0123456789abcdef" * 2, "a-b_c" * 8, "q" * 200, "Zy" * 11 + "=="])
def test_a_nonce_of_128_bits_is_taken(nonce: str) -> None:
    assert TypeAdapter(Nonce).validate_python(nonce).get_secret_value() == nonce


@pytest.mark.parametrize(
    "nonce", ["", "Z" * 21, "0123456789abcdef" + "0" * 15, "Z" * 201, "Z" * 21 + " ", "Z" * 30 + "\n", "é" * 30]
)
def test_a_nonce_that_may_hold_less_is_refused_without_being_quoted(nonce: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Nonce).validate_python(nonce)

    assert len(nonce) < 10 or nonce not in str(refused.value.errors(include_input=False))


@pytest.mark.parametrize("code", ["", "short", "has blanks in it 123456", "x" * 201, "x" * 30 + "\x00"])
def test_what_cannot_be_a_claim_code_is_refused(code: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(ClaimCode).validate_python(code)


def test_a_token_depends_on_code_and_nonce_only() -> None:
    token = derive_token(CODE, "n" * 22)

    assert token == derive_token(CODE, "n" * 22)
    assert len({token, derive_token(CODE, "m" * 22), derive_token(CODE + "x", "n" * 22)}) == 3
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", token)


def test_what_is_stored_is_the_sha256_in_hex() -> None:
    assert digest(CODE) == hashlib.sha256(CODE.encode()).hexdigest()


def test_neither_call_nor_answer_shows_a_secret_in_its_repr() -> None:
    call = RedeemCall.model_validate({"claim_code": CODE, "nonce": "n" * 22})
    answer = RedeemAnswer(agent_id="scaler-1", token="t0ken-t0ken", heartbeat_interval_s=30)

    shown = f"{call!r} {call} {answer!r} {answer}"

    assert CODE not in shown
    assert "n" * 22 not in shown
    assert "t0ken-t0ken" not in shown
