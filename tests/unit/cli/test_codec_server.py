"""`hatchway codec-server` as a process, and what it refuses to start with."""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.unit.cli.conftest import Command


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text(f"a {base64.b64encode(bytes(32)).decode()}\n")
    return path


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("ab" * 32 + "\n")
    return path


def test_it_serves_until_it_is_told_to_end(keys: Path, token: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HATCHWAY_PAYLOAD_KEYS": str(keys)}
    arguments = [sys.executable, "-m", "hatchway.cli", "codec-server", "--token-file", str(token), "--port", "0"]
    with subprocess.Popen(arguments, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+", said)
            assert address is not None
            answer = httpx.post(f"{address[0]}/decode", json={}, headers={"Authorization": f"Bearer {'ab' * 32}"})
            process.send_signal(signal.SIGTERM)
            code = process.wait(20)
        finally:
            process.kill()

    assert "ab" * 32 not in said
    assert (answer.status_code, code) == (200, 0)


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("ab" * 32, 0o644, "chmod 600"),
        ("ab" * 32, 0o640, "chmod 600"),
        ("short", 0o600, "at least 32"),
        ("", 0o600, "at least 32"),
        ("a b" * 32, 0o600, "at least 32"),
        ("a/b" * 32, 0o600, "at least 32"),
    ],
)
def test_a_token_that_others_have_or_can_guess_is_refused(
    command: Command, monkeypatch: pytest.MonkeyPatch, keys: Path, token: Path, content: str, mode: int, words: str
) -> None:
    monkeypatch.setenv("HATCHWAY_PAYLOAD_KEYS", str(keys))
    token.write_text(content)
    token.chmod(mode)

    said = command("codec-server", "--token-file", str(token))

    assert (said.code, said.out) == (2, "")
    assert words in said.err


@pytest.mark.parametrize(
    "origin", ["localhost:8233", "http://localhost:8233/", "*", "http://a@b", "http://:a@b", "ftp://x", "null"]
)
def test_an_origin_that_is_none_is_refused(
    command: Command, monkeypatch: pytest.MonkeyPatch, keys: Path, token: Path, origin: str
) -> None:
    monkeypatch.setenv("HATCHWAY_PAYLOAD_KEYS", str(keys))

    said = command("codec-server", "--token-file", str(token), "--origin", origin)

    assert said.code == 2
    assert "--origin" in said.err


def test_without_keys_it_says_which_variable_is_missing(
    command: Command, monkeypatch: pytest.MonkeyPatch, token: Path
) -> None:
    monkeypatch.delenv("HATCHWAY_PAYLOAD_KEYS", raising=False)
    said = command("codec-server", "--token-file", str(token))
    assert (said.code, "HATCHWAY_PAYLOAD_KEYS" in said.err) == (2, True)

    monkeypatch.setenv("HATCHWAY_PAYLOAD_KEYS", "/nonexistent")
    said = command("codec-server", "--token-file", str(token))
    assert (said.code, "/nonexistent" in said.err) == (1, True)
