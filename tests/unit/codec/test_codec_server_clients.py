"""Clients of the codec endpoint that go away in the middle."""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from hatchway.codec import VARIABLE, EncryptingCodec, codec_from
from hatchway.codec_server import CodecServer, Settings
from tests.unit.codec.rig import WriteKeys

TOKEN = "t" * 32


class Watched(CodecServer):
    """Says when it is done with a client."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.done = threading.Event()

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.done.set()


def test_a_client_that_goes_away_is_no_traceback(
    write_keys: WriteKeys, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    codec = codec_from({VARIABLE: str(write_keys("a"))})
    assert isinstance(codec, EncryptingCodec)
    with Watched(Settings(0, TOKEN), codec) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        client = socket.create_connection(("127.0.0.1", server.server_address[1]))
        head = f"POST /{TOKEN}/decode HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 1000\r\n\r\n{{"
        client.sendall(head.encode())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # so that it ends by a reset
        client.close()
        assert server.done.wait(10)
        server.shutdown()

    assert capfd.readouterr().err == ""


def test_a_bug_is_one_line_without_what_was_asked(
    write_keys: WriteKeys, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    codec = codec_from({VARIABLE: str(write_keys("a"))})
    assert isinstance(codec, EncryptingCodec)

    async def failing(self: CodecServer, payloads: object) -> None:
        raise RuntimeError(f"marker in {payloads!r}")

    monkeypatch.setattr(CodecServer, "decoded", failing)
    with Watched(Settings(0, TOKEN), codec) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        with socket.create_connection(("127.0.0.1", server.server_address[1])) as client:
            head = f"POST /{TOKEN}/decode HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 2\r\n\r\n{{}}"
            client.sendall(head.encode())
            assert server.done.wait(10)
        server.shutdown()

    said = capfd.readouterr().err
    assert said.splitlines() == ["hatchway codec-server: a request failed (RuntimeError)"]
