"""Payloads that Temporal cannot read: AES-256-GCM with the keys of the file that HATCHWAY_PAYLOAD_KEYS names.

Inputs, results, signals, updates, queries, details, memos, summaries and failures are payloads, and go out encrypted.
What comes in without encryption is taken as it is: workflows that began before it was turned on go on.

    a key that is not known     decoding raises, always: the workflow task fails, is tried again, and goes on once the
                                key is there. Also without any keys: a worker that forgot its own must stop there, and
                                not take for unreadable, for good, what others can read
    another key of that id      the same: a file was replaced, or this process has yesterday's. A payload bears a
                                fingerprint of the key that it was encrypted with
    altered or cut              nobody can ever read it: it is handed on as it is, and the converter makes of it what
                                it makes of every payload that cannot be read (see converter.py)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from hatchway.errors import HatchwayError

if TYPE_CHECKING:
    from hatchway.codec_keys import KeyRing

VARIABLE = "HATCHWAY_PAYLOAD_KEYS"
ENCODING = b"binary/encrypted"
CIPHER, EARLIER_CIPHER = b"hatchway/2", b"hatchway/1"
"""Ours, and in this form (AES-256-GCM): what another program's codec encrypts is none of our business.

    hatchway/2     the key's fingerprint, nonce, ciphertext: as it is written
    hatchway/1     nonce, ciphertext: as it was written before, and is still read

Short, as all of this is: it comes on top of every payload, and most are a few hundred bytes. So the fingerprint stands
before the data, and not under a name of its own.
"""
ENCODING_KEY, CIPHER_KEY, ID_KEY = "encoding", "cipher", "encryption-key-id"
FINGERPRINT_BYTES = 8


class PayloadKeyMissing(HatchwayError):
    """A payload is encrypted with a key that this process does not have. Says which, and what to do."""


def is_encrypted(payload: Payload) -> bool:
    """Whether this is one of ours, encrypted."""
    return payload.metadata.get(ENCODING_KEY) == ENCODING and payload.metadata.get(CIPHER_KEY) in (
        CIPHER,
        EARLIER_CIPHER,
    )


def key_of(payload: Payload) -> tuple[str, bytes]:
    """Id and fingerprint of the key that an encrypted payload names; the latter is empty in those that have none."""
    bears_one = payload.metadata.get(CIPHER_KEY) == CIPHER
    return key_id_of(payload), payload.data[:FINGERPRINT_BYTES] if bears_one else b""


def key_id_of(payload: Payload) -> str:
    """The key that an encrypted payload names. Anybody may have written it."""
    return payload.metadata.get(ID_KEY, b"").decode(errors="replace")[:32]


class EncryptingCodec(PayloadCodec):
    """Encrypts with the first key of a ring, and decrypts with whichever a payload names."""

    def __init__(self, ring: KeyRing) -> None:
        self.ring = ring

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        key_id = self.ring.encrypts_with
        return list(payloads) if key_id is None else [self._sealed(payload, key_id) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Raises PayloadKeyMissing."""
        return [await self._opened(payload) if is_encrypted(payload) else payload for payload in payloads]

    def _sealed(self, payload: Payload, key_id: str) -> Payload:
        name = key_id.encode()
        return Payload(
            metadata={ENCODING_KEY: ENCODING, CIPHER_KEY: CIPHER, ID_KEY: name},
            data=self.ring.fingerprint(key_id)
            + self.ring.seal(payload.SerializeToString(), key_id, _context(CIPHER, name)),
        )

    async def _opened(self, payload: Payload) -> Payload:
        from hatchway.codec_keys import Undecryptable

        name, (key_id, fingerprint) = payload.metadata.get(ID_KEY, b""), key_of(payload)
        if payload.metadata[CIPHER_KEY] == CIPHER and len(fingerprint) < FINGERPRINT_BYTES:
            return payload
        # A key may have got another id since, and its own may be another's now. An id that was changed on the way does
        # not open: it is authenticated.
        if not await self.ring.knows(key_id, fingerprint) and not self.ring.has(fingerprint):
            raise PayloadKeyMissing(self._lacks(key_id))
        opened, cipher = Payload(), payload.metadata[CIPHER_KEY]
        try:
            sealed = payload.data[len(fingerprint) :]
            opened.ParseFromString(self.ring.open(sealed, key_id, _context(cipher, name), fingerprint))
        except (Undecryptable, DecodeError):
            return payload
        return opened

    def _lacks(self, key_id: str) -> str:
        if key_id in self.ring.ids:
            return (
                f"a payload is encrypted with a key {key_id!r} that is not the one of the same id in {self.ring.path}: "
                "put the key there that the others have, and what waits for it goes on by itself"
            )
        return (
            f"a payload is encrypted with the key {key_id!r}, which is not in {self.ring.path}: add it there, and what "
            "waits for it goes on by itself"
        )


class WithoutKeys(PayloadCodec):
    """Encrypts nothing, and stops at what is encrypted instead of taking it for garbage."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Raises PayloadKeyMissing."""
        for payload in payloads:
            if is_encrypted(payload):
                raise PayloadKeyMissing(
                    f"a payload is encrypted with the key {key_id_of(payload)!r}, and this process has no keys: set "
                    f"{VARIABLE} to the file that holds them"
                )
        return list(payloads)


def codec_from(environ: Mapping[str, str] = os.environ) -> EncryptingCodec | WithoutKeys:
    """The codec that the environment asks for. Raises PayloadKeysError for a file that cannot be used. Blocks."""
    path = environ.get(VARIABLE, "").strip()
    if not path:
        return WithoutKeys()
    from hatchway.codec_keys import KeyRing  # the cipher costs those who encrypt nothing no import

    return EncryptingCodec(KeyRing(path))


def _context(cipher: bytes, key_id: bytes) -> bytes:
    """Authenticated, not encrypted: a payload under another key's name, or as another form, does not open."""
    return cipher + b"\0" + key_id
