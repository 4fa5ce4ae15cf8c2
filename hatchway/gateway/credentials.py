"""Claim codes, nonces and tokens: how they look, and what of them may be stored or logged."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Annotated

from fastapi import Depends, Request
from pydantic import AfterValidator, Field, SecretStr

from hatchway.gateway.errors import unauthorized

CLAIM_PREFIX_LENGTH = 12

_CODE = re.compile(r"[A-Za-z0-9_.~+/=-]{16,200}")
_NONCE = re.compile(r"[A-Za-z0-9_.~+/=-]{22,200}")
_HEX = re.compile(r"[0-9A-Fa-f]+")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


def _is_code(value: SecretStr) -> SecretStr:
    if not _CODE.fullmatch(value.get_secret_value()):
        raise ValueError("must be a claim code: 16 to 200 letters, digits and _ . ~ + / = -")
    return value


def _is_nonce(value: SecretStr) -> SecretStr:
    """128 bit are 22 characters of base64 but 32 of hex; all-hex text is taken as hex."""
    text = value.get_secret_value()
    if not _NONCE.fullmatch(text) or (_HEX.fullmatch(text) and len(text) < 32):
        raise ValueError("must hold at least 128 random bits: 22 or more characters of base64url, or 32 or more of hex")
    return value


ClaimCode = Annotated[SecretStr, Field(max_length=200), AfterValidator(_is_code)]
Nonce = Annotated[SecretStr, Field(max_length=200), AfterValidator(_is_nonce)]


def digest(secret: str) -> str:
    """What Postgres keeps of a claim code, a nonce or a token: the sha256 in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()


def derive_token(code: str, nonce: str) -> str:
    """The token of a redemption: the same code and nonce give the same one, so a lost answer loses nothing."""
    mac = hmac.new(code.encode(), nonce.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


def _bearer_hash(request: Request) -> str:
    """The hash of the request's token. Raises 401 for a header that cannot be one of ours, without a look-up."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token.strip()):
        raise unauthorized()
    return digest(token.strip())


TokenHash = Annotated[str, Depends(_bearer_hash)]
