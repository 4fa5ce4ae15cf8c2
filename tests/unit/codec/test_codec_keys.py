"""The file of the payload keys: the first key encrypts, all decrypt, and nobody else may read it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from hatchway import codec_keys
from hatchway.codec_keys import KeyRing, PayloadKeysError, Undecryptable
from tests.unit.codec.rig import WriteKeys

GOOD = base64.b64encode(bytes(32)).decode()


@pytest.mark.parametrize(
    ("lines", "first", "ids"),
    [
        (("a",), "a", ["a"]),
        (("b", "a"), "b", ["b", "a"]),
        (("# of december", "", "b", "", "a"), "b", ["b", "a"]),
        (("none", "a", "b"), None, ["a", "b"]),
        (("# off", "none", "a"), None, ["a"]),
    ],
)
def test_the_first_key_encrypts_and_none_before_it_encrypts_nothing(
    write_keys: WriteKeys, lines: tuple[str, ...], first: str | None, ids: list[str]
) -> None:
    ring = KeyRing(str(write_keys(*lines)))

    assert (ring.encrypts_with, ring.ids) == (first, ids)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "hold no key"),
        ("none\n", "hold no key"),
        ("# nothing\n", "hold no key"),
        (f"{GOOD}\n", "line 1: a key is its id and 32 bytes"),
        (f"a {GOOD} x\n", "line 1: a key is its id"),
        (f"a/b {GOOD}\n", "line 1: an id has"),
        (f"none {GOOD}\n", "line 1: an id has"),
        (f"{'a' * 33} {GOOD}\n", "line 1: an id has"),
        (f"a {GOOD}\na {GOOD}\n", "line 2: the id a stands in an earlier line"),
        (f"a {GOOD}\nnone\n", "line 2: a key is its id"),
        ("a hunter2\n", "line 1: the key is not 32 bytes"),
        (f"a {base64.b64encode(bytes(16)).decode()}\n", "line 1: the key is not 32 bytes"),
        (f"a {base64.b64encode(bytes(33)).decode()}\n", "line 1: the key is not 32 bytes"),
        ("a " + "x" * 70_000, "larger than"),
    ],
)
def test_a_file_that_cannot_be_meant_is_told_by_its_line_and_not_quoted(
    tmp_path: Path, content: str, reason: str
) -> None:
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text(content)

    with pytest.raises(PayloadKeysError, match=reason) as refused:
        KeyRing(str(path))

    assert "hunter2" not in str(refused.value)
    assert GOOD not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601])
def test_keys_that_others_may_touch_are_refused(write_keys: WriteKeys, mode: int) -> None:
    path = write_keys("a")
    path.chmod(mode)

    with pytest.raises(PayloadKeysError, match="chmod 600"):
        KeyRing(str(path))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "absent", "No such file"), (tmp_path, "not a regular file|Is a directory")):
        with pytest.raises(PayloadKeysError, match=reason):
            KeyRing(str(path))


def test_a_mounted_secret_is_a_link_and_is_read(write_keys: WriteKeys, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(write_keys("a"))

    assert KeyRing(str(tmp_path / "link")).ids == ["a"]


def test_what_was_sealed_opens_with_its_key_and_its_context_only(write_keys: WriteKeys) -> None:
    ring = KeyRing(str(write_keys("a", "b")))
    sealed = ring.seal(b"text", "a", b"context")

    assert ring.open(sealed, "a", b"context") == b"text"
    assert b"text" not in sealed
    assert ring.seal(b"text", "a", b"context") != sealed
    for bad, key, context in (
        (sealed, "b", b"context"), (sealed, "a", b"other"), (sealed[:-1], "a", b"context"), (b"", "a", b"context"),
        (sealed[:12], "a", b"context"), (sealed[:5], "a", b"context"), (bytes([sealed[0] ^ 1]) + sealed[1:], "a", b"c"),
    ):  # fmt: skip
        with pytest.raises(Undecryptable):
            ring.open(bad, key, context)


async def test_a_key_that_is_added_is_found_and_a_broken_file_takes_none_away(
    write_keys: WriteKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_keys("a")
    ring = KeyRing(str(path))
    monkeypatch.setattr(codec_keys, "READ_AGAIN_AFTER", 0.0)

    assert not await ring.knows("b")
    write_keys("b", "a")
    assert await ring.knows("b")
    assert ring.encrypts_with == "b"
    path.write_text("half a li")
    assert not await ring.knows("c")
    assert await ring.knows("b")


async def test_a_payload_with_an_unknown_key_does_not_have_the_file_read_each_time(
    write_keys: WriteKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_keys("a")
    ring = KeyRing(str(path))
    monkeypatch.setattr(codec_keys, "READ_AGAIN_AFTER", 3600.0)
    write_keys("a", "b")

    assert not await ring.knows("b")


def test_a_ring_shows_no_key(write_keys: WriteKeys) -> None:
    ring = KeyRing(str(write_keys("a")))

    assert not any(GOOD in text or "AESGCM" in text for text in (repr(ring), repr(vars(ring))))
