"""Payloads that Temporal cannot read: AES-256-GCM with the keys of the file that HATCHWAY_PAYLOAD_KEYS names.

Inputs, results, signals, updates, queries, details, memos, summaries and failures are payloads, and go out encrypted.
What comes in without encryption is taken as it is: workflows that began before it was turned on go on.

    a key that is not known     decoding raises, always: the workflow task fails, is tried again, and goes on once the
                                key is there. Also without any keys: a worker that forgot its own must stop there, and
                                not take for unreadable, for good, what others can read
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
CIPHER = b"hatchway/1"
"""Ours, and in this form (AES-256-GCM): what another program's codec encrypts is none of our business.

Short, as all of the metadata is: it comes on top of every payload, and most are a few hundred bytes.
"""
ENCODING_KEY, CIPHER_KEY, ID_KEY = "encoding", "cipher", "encryption-key-id"


class PayloadKeyMissing(HatchwayError):
    """A payload is encrypted with a key that this process does not have. Says which, and what to do."""


def is_encrypted(payload: Payload) -> bool:
    """Whether this is one of ours, encrypted."""
    return payload.metadata.get(ENCODING_KEY) == ENCODING and payload.metadata.get(CIPHER_KEY) == CIPHER


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
            data=self.ring.seal(payload.SerializeToString(), key_id, _context(name)),
        )

    async def _opened(self, payload: Payload) -> Payload:
        from hatchway.codec_keys import Undecryptable

        name = payload.metadata.get(ID_KEY, b"")
        if not await self.ring.knows(key_id_of(payload)):
            raise PayloadKeyMissing(
                f"a payload is encrypted with the key {key_id_of(payload)!r}, which is not in {self.ring.path}: add it "
                "there, and what waits for it goes on by itself"
            )
        opened = Payload()
        try:
            opened.ParseFromString(self.ring.open(payload.data, key_id_of(payload), _context(name)))
        except (Undecryptable, DecodeError):
            return payload
        return opened


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


def _context(key_id: bytes) -> bytes:
    """Authenticated, not encrypted: a payload under another key's name does not open."""
    return CIPHER + b"\0" + key_id
