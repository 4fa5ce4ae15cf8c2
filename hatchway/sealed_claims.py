"""Claim codes sealed to a customer's key: what lies in the history of their workflow opens nothing.

A workflow's input stays readable for as long as its namespace keeps it, to everybody who may read the namespace. So a
`temporal:` target gets the claim code encrypted to an X25519 public key that stands in Hatchway's configuration. The
private key is the customer's alone: Hatchway cannot open what it has sealed, and holds no secret for it.

    sealed.v1.<base64url of: ephemeral public key (32 bytes), AES-256-GCM ciphertext with its tag>

Key and nonce come out of HKDF-SHA256 over the X25519 shared secret, with both public keys as info; each seal has an
ephemeral key of its own, so no nonce is ever used twice. The agent id is authenticated with it: a code that was sealed
for one agent cannot be passed off as another's.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hatchway.errors import HatchwayError

PREFIX = "sealed.v1."
KEY_BYTES = 32
NONCE_BYTES = 12


class ClaimKeyError(HatchwayError):
    """What was given is no key. Never quotes it."""


class CannotOpenClaim(HatchwayError):
    """The value is not sealed, was sealed for another key or agent, or was changed on its way. Never quotes it."""


def new_claim_keys() -> tuple[str, str]:
    """A private key for the customer's workers, and its public key for `claimKey`; both base64, of 32 bytes."""
    private = X25519PrivateKey.generate()
    return _text(private.private_bytes_raw()), _text(private.public_key().public_bytes_raw())


def parse_claim_key(public_key: str) -> X25519PublicKey:
    """The public key as it stands in a configuration. Raises ClaimKeyError."""
    return X25519PublicKey.from_public_bytes(_key_bytes(public_key, "claimKey"))


def seal_claim(claim_code: str, public_key: str, agent_id: str) -> str:
    """`claim_code` for whoever has the private key. Another text each time. Raises ClaimKeyError."""
    recipient, ephemeral = parse_claim_key(public_key), X25519PrivateKey.generate()
    ours, theirs = ephemeral.public_key().public_bytes_raw(), recipient.public_bytes_raw()
    try:
        shared = ephemeral.exchange(recipient)
    except ValueError:  # a point of small order: every seal to it would have the same key
        raise ClaimKeyError("the claim key is a point that nobody can seal to: make a new pair") from None
    sealing, nonce = _derive(shared, ours, theirs)
    sealed = AESGCM(sealing).encrypt(nonce, claim_code.encode(), agent_id.encode())
    return PREFIX + base64.urlsafe_b64encode(ours + sealed).decode().rstrip("=")


def open_claim(claim_code: str, private_keys: str | Iterable[str], agent_id: str) -> str:
    """The code out of a ScaleUp's `claimCode`, with the private key, or with any of several while one is replaced.

    For an activity of the customer's: what it returns must not become the result of one, or lie in history after all.
    Raises CannotOpenClaim, ClaimKeyError.
    """
    if not claim_code.startswith(PREFIX):
        raise CannotOpenClaim("the claim code is not sealed: does its target have a `claimKey`?")
    try:
        padded = claim_code[len(PREFIX) :] + "=" * (-len(claim_code[len(PREFIX) :]) % 4)
        raw = base64.b64decode(padded, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise CannotOpenClaim("the claim code was damaged on its way") from None
    theirs, sealed = raw[:KEY_BYTES], raw[KEY_BYTES:]
    for key in [private_keys] if isinstance(private_keys, str) else private_keys:
        private = X25519PrivateKey.from_private_bytes(_key_bytes(key, "the private claim key"))
        try:
            shared = private.exchange(X25519PublicKey.from_public_bytes(theirs))
            opening, nonce = _derive(shared, theirs, private.public_key().public_bytes_raw())
            return AESGCM(opening).decrypt(nonce, sealed, agent_id.encode()).decode()
        except (InvalidTag, ValueError):
            continue  # another key may be the one; that none is, is said below
    raise CannotOpenClaim("the claim code was sealed for another key or another agent, or was changed on its way")


def _derive(shared: bytes, ephemeral: bytes, recipient: bytes) -> tuple[bytes, bytes]:
    """AES key and nonce of one seal."""
    derived = HKDF(
        algorithm=SHA256(),
        length=KEY_BYTES + NONCE_BYTES,
        salt=None,
        info=b"hatchway claim v1" + ephemeral + recipient,
    ).derive(shared)
    return derived[:KEY_BYTES], derived[KEY_BYTES:]


def _key_bytes(text: str, what: str) -> bytes:
    try:
        raw = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise ClaimKeyError(f"{what} is not base64: `hatchway claim-keys` makes a pair") from None
    if len(raw) != KEY_BYTES:
        raise ClaimKeyError(f"{what} has {len(raw)} bytes, not {KEY_BYTES}: `hatchway claim-keys` makes a pair")
    return raw


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
