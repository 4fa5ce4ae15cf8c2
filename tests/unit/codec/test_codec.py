"""Encrypted payloads: no reader without the key, no stop at a stranger's garbage, a stop at a key that is missing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter, WithSerializationContext
from temporalio.exceptions import ApplicationError

from hatchway import codec_keys
from hatchway.codec import (
    ENCODING,
    VARIABLE,
    EncryptingCodec,
    PayloadKeyMissing,
    WithoutKeys,
    codec_from,
    is_encrypted,
)
from hatchway.codec_keys import PayloadKeysError
from hatchway.converter import Unreadable, converter_from, data_converter, encoded_as_now, failure_words
from hatchway.model import ProvisionRequest
from tests.unit.codec.rig import WriteKeys

MARKER = "marker-of-this-test"
REQUEST = ProvisionRequest(labels=[MARKER])


def converter(path: Path | None) -> DataConverter:
    return converter_from({VARIABLE: str(path)} if path else {})


def test_without_the_variable_nothing_is_encrypted() -> None:
    assert isinstance(codec_from({}), WithoutKeys)
    assert isinstance(codec_from({VARIABLE: " "}), WithoutKeys)
    assert converter_from({}) is data_converter


def test_a_variable_that_names_no_keys_is_an_error_and_never_plain_text() -> None:
    with pytest.raises(PayloadKeysError, match="/nonexistent"):
        converter_from({VARIABLE: "/nonexistent"})


async def test_a_payload_shows_its_key_and_nothing_else(write_keys: WriteKeys) -> None:
    with_keys = converter(write_keys("2026-12"))

    (plain,) = await data_converter.encode([REQUEST])
    (sealed,) = await with_keys.encode([REQUEST])
    (read,) = await with_keys.decode([sealed], [ProvisionRequest])

    assert MARKER.encode() in plain.SerializeToString()
    assert MARKER.encode() not in sealed.SerializeToString()
    assert b"json" not in sealed.SerializeToString()
    assert dict(sealed.metadata)["encryption-key-id"] == b"2026-12"
    assert is_encrypted(sealed)
    assert read == REQUEST


async def test_after_a_rotation_the_old_key_decrypts_and_the_new_one_encrypts(write_keys: WriteKeys) -> None:
    (old,) = await converter(write_keys("old")).encode([REQUEST])
    rotated = converter(write_keys("new", "old"))
    (new,) = await rotated.encode([REQUEST])

    assert new.metadata["encryption-key-id"] == b"new"
    assert await rotated.decode([old, new], [ProvisionRequest, ProvisionRequest]) == [REQUEST, REQUEST]


async def test_keys_that_are_handed_out_ahead_decrypt_and_do_not_encrypt(write_keys: WriteKeys) -> None:
    (sealed,) = await converter(write_keys("a")).encode([REQUEST])
    ahead = converter(write_keys("none", "a", file="ahead"))

    (plain,) = await ahead.encode([REQUEST])

    assert not is_encrypted(plain)
    assert await ahead.decode([sealed], [ProvisionRequest]) == [REQUEST]


async def test_what_was_not_encrypted_is_read_as_before(write_keys: WriteKeys) -> None:
    plain = await data_converter.encode([REQUEST, None, "text"])

    assert await converter(write_keys("a")).decode(plain, [ProvisionRequest, type(None), str]) == [
        REQUEST,
        None,
        "text",
    ]


@pytest.mark.parametrize("hint", [[ProvisionRequest], None])
@pytest.mark.parametrize("keys", ["other", None])
async def test_a_key_that_is_missing_stops_and_says_which(
    write_keys: WriteKeys, keys: str | None, hint: list[type] | None
) -> None:
    """Also where no type is asked for: there a payload that nobody can read is passed over, for good."""
    (sealed,) = await converter(write_keys("wanted")).encode([REQUEST])
    lacking = converter(write_keys(keys, file="lacking") if keys else None)

    with pytest.raises(PayloadKeyMissing, match="'wanted'"):
        await lacking.decode([sealed], hint)


@pytest.mark.parametrize("hint", [[ProvisionRequest], None])
async def test_another_key_under_the_same_id_is_a_missing_key_and_no_tampering(
    write_keys: WriteKeys, hint: list[type] | None
) -> None:
    """A file that was replaced, or a worker that has yesterday's: others can read it, so nothing may fail for good."""
    (sealed,) = await converter(write_keys("a")).encode([REQUEST])
    lacking = converter(write_keys("a:other", "b", file="lacking"))

    with pytest.raises(PayloadKeyMissing, match=r"'a'.*of the same id") as missing:
        await lacking.decode([sealed], hint)

    assert "lacking" in str(missing.value)


@pytest.mark.parametrize("hint", [[ProvisionRequest], None])
async def test_a_key_that_has_got_another_id_still_opens_what_it_closed(
    write_keys: WriteKeys, hint: list[type] | None
) -> None:
    """As where the current key is always `current`, and the one before it is kept under another name."""
    path = write_keys("current")
    (sealed,) = await converter(path).encode([REQUEST])
    plain = await converter(path).decode([sealed], hint)
    _, old = path.read_text().split()
    rotated = write_keys("current:new", file="rotated")
    rotated.write_text(f"{rotated.read_text()}previous {old}\n")

    assert await converter(rotated).decode([sealed], hint) == plain


async def test_a_worker_with_yesterdays_file_goes_on_once_the_file_is_todays(
    write_keys: WriteKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec_keys, "READ_AGAIN_AFTER", 0.0)
    (sealed,) = await converter(write_keys("a")).encode([REQUEST])
    lacking = converter(write_keys("a:yesterday", file="lacking"))
    write_keys("a", file="lacking")

    assert await lacking.decode([sealed], [ProvisionRequest]) == [REQUEST]


async def test_a_payload_without_a_fingerprint_opens_with_its_key(write_keys: WriteKeys) -> None:
    """As it was written before there were any."""
    (plain,) = await data_converter.encode([REQUEST])
    path = write_keys("a")
    sealed = Payload(
        metadata={"encoding": b"binary/encrypted", "cipher": b"hatchway/1", "encryption-key-id": b"a"},
        data=codec_keys.KeyRing(str(path)).seal(plain.SerializeToString(), "a", b"hatchway/1\0a"),
    )

    assert await converter(path).decode([sealed], [ProvisionRequest]) == [REQUEST]
    with pytest.raises(PayloadKeyMissing):
        await data_converter.decode([sealed], [ProvisionRequest])


async def test_a_fingerprint_tells_keys_apart_and_nothing_of_them(write_keys: WriteKeys) -> None:
    (first,) = await converter(write_keys("a")).encode([REQUEST])
    (again,) = await converter(write_keys("a", file="copy")).encode([1])
    (other,) = await converter(write_keys("a:other")).encode([REQUEST])
    key = hashlib.sha256(b"a").digest()

    assert first.data[:8] == again.data[:8] != other.data[:8]
    assert first.data[8:20] != again.data[8:20]
    assert not any(key[at : at + 4] in first.data or hashlib.sha256(key).digest()[:4] in first.data for at in (0, 28))


async def test_what_is_kept_for_ever_leaves_a_key_whose_bytes_were_replaced(write_keys: WriteKeys) -> None:
    before, now = converter(write_keys("a:before")), converter(write_keys("a", file="now"))

    assert await encoded_as_now(now, await now.encode([REQUEST]), [REQUEST])
    assert not await encoded_as_now(now, await before.encode([REQUEST]), [REQUEST])


def altered(sealed: Payload, how: str) -> Payload:
    copy = Payload()
    copy.CopyFrom(sealed)
    if how == "altered":
        copy.data = copy.data[:-1] + bytes([copy.data[-1] ^ 1])
    elif how == "cut":
        copy.data = copy.data[:7]
    elif how == "empty":
        copy.data = b""
    else:
        copy.metadata["encryption-key-id"] = b"b"
    return copy


@pytest.mark.parametrize("how", ["altered", "cut", "empty", "under another key's name"])
async def test_what_was_altered_is_an_error_where_a_type_is_asked_for_and_unreadable_elsewhere(
    write_keys: WriteKeys, how: str
) -> None:
    with_keys = converter(write_keys("a", "b"))
    (sealed,) = await with_keys.encode([REQUEST])
    bad = altered(sealed, how)

    with pytest.raises(ValueError, match="altered or cut"):
        await with_keys.decode([bad], [ProvisionRequest])
    (read,) = await with_keys.decode([bad])
    assert isinstance(read, Unreadable)


@pytest.mark.parametrize("keys", [True, False])
async def test_what_another_program_encrypted_is_unreadable_and_stops_nothing(
    write_keys: WriteKeys, keys: bool
) -> None:
    foreign = Payload(metadata={"encoding": ENCODING, "encryption-key-id": b"x"}, data=b"\0" * 40)

    (read,) = await converter(write_keys("a") if keys else None).decode([foreign])

    assert isinstance(read, Unreadable)


async def failure(of: DataConverter) -> Failure:
    try:
        try:
            raise ValueError(f"cause {MARKER}")
        except ValueError as cause:
            raise ApplicationError(f"message {MARKER}", f"detail {MARKER}", type="SpawnFailed") from cause
    except ApplicationError as e:
        made = Failure()
        await of.encode_failure(e, made)
        return made


async def test_failures_show_their_type_and_no_message_no_detail_no_cause_and_no_stack(write_keys: WriteKeys) -> None:
    with_keys = converter(write_keys("a"))

    plain, sealed = await failure(data_converter), await failure(with_keys)

    assert plain.SerializeToString().count(MARKER.encode()) >= 3
    assert b"test_codec.py" in plain.SerializeToString()
    assert MARKER.encode() not in sealed.SerializeToString()
    assert b"test_codec.py" not in sealed.SerializeToString()
    assert sealed.application_failure_info.type == "SpawnFailed"
    assert await failure_words(with_keys, sealed) == f"message {MARKER}"
    assert await failure_words(with_keys, plain) == f"message {MARKER}"
    assert "the key 'a'" in await failure_words(data_converter, sealed)
    error: Any = await with_keys.decode_failure(sealed)
    assert (error.details[0], str(error.cause)) == (f"detail {MARKER}", f"ValueError: cause {MARKER}")


async def test_failures_stay_legible_while_nothing_is_encrypted(write_keys: WriteKeys) -> None:
    assert (await failure(converter(write_keys("none", "a")))).message == f"message {MARKER}"


async def test_failures_follow_the_file_when_it_is_read_again(
    write_keys: WriteKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encryption comes on, and goes off, with whatever has the file read again: payloads and failures alike."""
    monkeypatch.setattr(codec_keys, "READ_AGAIN_AFTER", 0.0)
    running = converter(write_keys("none", "a"))
    before = await failure(running)

    write_keys("b", "a")
    await running.decode(await converter(write_keys("b", file="others")).encode([1]))
    on = await failure(running)
    write_keys("none", "a", "b", "c")
    await running.decode(await converter(write_keys("c", file="others")).encode([1]))
    off = await failure(running)

    assert [MARKER.encode() in one.SerializeToString() for one in (before, on, off)] == [True, False, True]
    assert {await failure_words(running, one) for one in (before, on, off)} == {f"message {MARKER}"}


def test_the_codec_takes_no_context(write_keys: WriteKeys) -> None:
    """Workflows run without one, see hatchway/runner.py."""
    codec = converter(write_keys("a")).payload_codec

    assert isinstance(codec, EncryptingCodec)
    assert not isinstance(codec, WithSerializationContext)


async def test_encryption_adds_little_to_a_payload(write_keys: WriteKeys) -> None:
    (plain,) = await data_converter.encode(["x" * 200])
    (sealed,) = await converter(write_keys("k" * 32)).encode(["x" * 200])

    assert sealed.ByteSize() - plain.ByteSize() < 150
