"""The keys that payloads are encrypted with, from one file that only its owner may read.

    # id, then 32 random bytes in base64; the first key encrypts, all decrypt
    2026-12 q1Zt…=
    2026-06 9fB0…=

A key is told by its id and a fingerprint: an id may come to stand for other bytes, when a file is replaced.

The word `none` in the first line encrypts nothing and decrypts all the same: so are keys handed out before anybody uses
them, and so is encryption turned off again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import re
import secrets
import stat
import time
from dataclasses import dataclass, field

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hatchway.codec import FINGERPRINT_BYTES
from hatchway.errors import HatchwayError

log = structlog.get_logger(__name__)

KEY_BYTES, NONCE_BYTES = 32, 12
NOBODY = "none"
MOST_BYTES = 64 * 1024
READ_AGAIN_AFTER = 1.0
"""Seconds between two looks at a file that lacks a key: a workflow that waits for it asks again and again."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


class PayloadKeysError(HatchwayError):
    """The file of the payload keys cannot be used. Names the file and the line, never what stands there."""


class Undecryptable(HatchwayError):
    """The key is known, and it is not what this was encrypted with: it was altered, cut, or put together."""


@dataclass(frozen=True)
class _Key:
    cipher: AESGCM = field(repr=False)
    fingerprint: bytes


@dataclass(frozen=True)
class _Keys:
    first: str | None
    by_id: dict[str, _Key] = field(repr=False)

    def has(self, key_id: str, fingerprint: bytes) -> bool:
        key = self.by_id.get(key_id)
        return key is not None and fingerprint in (b"", key.fingerprint)

    def of(self, key_id: str, fingerprint: bytes) -> _Key:
        by_fingerprint = (key for key in self.by_id.values() if key.fingerprint == fingerprint)
        return next(by_fingerprint, None) or self.by_id[key_id]


class KeyRing:
    """The keys of one file. Read once; read again, at most every second, when a payload names a key that it lacks."""

    def __init__(self, path: str) -> None:
        """Raises PayloadKeysError. Blocks."""
        self.path = path
        self._keys = _read(path)
        self._read_at = time.monotonic()

    @property
    def encrypts_with(self) -> str | None:
        """The id of the key that encrypts, or None: nothing is encrypted."""
        return self._keys.first

    @property
    def ids(self) -> list[str]:
        return list(self._keys.by_id)

    def fingerprint(self, key_id: str) -> bytes:
        """By which others see whether they have the same key. Raises KeyError."""
        return self._keys.by_id[key_id].fingerprint

    def has(self, fingerprint: bytes) -> bool:
        """Whether any of the keys has it."""
        return any(key.fingerprint == fingerprint for key in self._keys.by_id.values())

    def seal(self, data: bytes, key_id: str, context: bytes) -> bytes:
        """Nonce and ciphertext, which open only with the same context."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._keys.by_id[key_id].cipher.encrypt(nonce, data, context)

    def open(self, sealed: bytes, key_id: str, context: bytes, fingerprint: bytes = b"") -> bytes:
        """What `seal` was given, by the key of that fingerprint, or else of that id.

        Raises KeyError for a key that is not known, Undecryptable.
        """
        key = self._keys.of(key_id, fingerprint).cipher
        try:
            return key.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
        except (InvalidTag, ValueError):  # ValueError: too short for a nonce
            raise Undecryptable(f"it is not what was encrypted with the key {key_id}: it was altered or cut") from None

    async def knows(self, key_id: str, fingerprint: bytes = b"") -> bool:
        """Whether there is such a key by now, with that fingerprint if one is given. A file that has become unusable
        leaves what is known.
        """
        if not self._keys.has(key_id, fingerprint) and time.monotonic() - self._read_at >= READ_AGAIN_AFTER:
            self._read_at = time.monotonic()
            try:
                self._keys = await asyncio.to_thread(_read, self.path)
            except PayloadKeysError as e:
                log.warning("the payload keys cannot be read again; those that are known stay", error=str(e))
        return self._keys.has(key_id, fingerprint)


def _read(path: str) -> _Keys:
    try:
        with open(path, "rb", opener=_quickly) as file:
            _check_owner(path, os.fstat(file.fileno()))
            content = file.read(MOST_BYTES + 1)
    except OSError as e:
        raise PayloadKeysError(f"the payload keys {path} cannot be read: {os.strerror(e.errno or 0)}") from None
    if len(content) > MOST_BYTES:
        raise PayloadKeysError(f"the payload keys {path} are larger than {MOST_BYTES // 1024} KiB")
    return _parse(content, path)


def _quickly(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)  # a fifo must not hang us


def _check_owner(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise PayloadKeysError(f"the payload keys {path} are not a regular file")
    if found.st_uid not in (os.geteuid(), 0):
        raise PayloadKeysError(f"the payload keys {path} belong to another user, who could change them: chown them")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise PayloadKeysError(f"the payload keys {path} are open to others: chmod 600 {path}")


def _parse(content: bytes, path: str) -> _Keys:
    first: str | None = None
    by_id: dict[str, _Key] = {}
    encrypts = True
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words == [NOBODY] and not by_id and encrypts:
            encrypts = False
            continue
        where = f"the payload keys {path}, line {number}:"
        if len(words) != 2:
            raise PayloadKeysError(f"{where} a key is its id and 32 bytes in base64, with a space between them")
        key_id, text = words
        if not _ID.fullmatch(key_id) or key_id == NOBODY:
            raise PayloadKeysError(f"{where} an id has up to 32 letters, digits, dots, dashes and underscores")
        if key_id in by_id:
            raise PayloadKeysError(f"{where} the id {key_id} stands in an earlier line too")
        key = _key(text, where)
        by_id[key_id] = _Key(AESGCM(key), _fingerprint(key))
        first = first or key_id
    if not by_id:
        raise PayloadKeysError(f"the payload keys {path} hold no key; `openssl rand -base64 32` makes one")
    return _Keys(first if encrypts else None, by_id)


def _fingerprint(key: bytes) -> bytes:
    """Of a hash that is used for nothing else: what it tells of a random key is that it is this one."""
    return hashlib.sha256(b"hatchway/payload-key-fingerprint\0" + key).digest()[:FINGERPRINT_BYTES]


def _key(text: str, where: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise PayloadKeysError(f"{where} the key is not 32 bytes in base64; `openssl rand -base64 32` makes one")
    return key
