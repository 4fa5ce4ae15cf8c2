"""`hatchway codec-server`: shows encrypted payloads to Temporal's UI and command line."""

from __future__ import annotations

import os
import signal
import stat
import threading
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from hatchway.cli.failures import failed, usage

LEAST_TOKEN = 32
"""Characters. It is all that stands between any program on this machine and every payload."""


def codec_server(
    token_file: Annotated[
        Path, typer.Option(metavar="FILE", help="Holds the bearer token; `openssl rand -hex 32 > FILE` makes one.")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0: any free one.")] = 8782,
    origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A UI whose pages may ask, as in http://localhost:8233; may be repeated."),
    ] = None,
) -> None:
    """Decrypt payloads for Temporal's UI and `temporal` on this machine, until SIGTERM or Ctrl-C.

    Needs HATCHWAY_PAYLOAD_KEYS. Reads neither Postgres nor Temporal, and never listens beyond loopback.
    """
    from hatchway.codec import VARIABLE, EncryptingCodec, codec_from
    from hatchway.codec_server import CodecServer, Settings

    codec = codec_from()
    if not isinstance(codec, EncryptingCodec):
        raise usage(f"{VARIABLE} is not set: it names the file of the payload keys")
    settings = Settings(port, _token(token_file), frozenset(map(_origin, origin or ())))
    try:
        server = CodecServer(settings, codec)
    except OSError as e:
        raise failed("port", f"cannot listen on 127.0.0.1:{port}: {e.strerror}") from None
    print(f"decrypting at {server.address} with the keys {', '.join(codec.ring.ids)}", flush=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        # From another thread: `shutdown` waits for the loop that a handler would hold up.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    with server:
        server.serve_forever(poll_interval=0.1)


def _token(path: Path) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(4096).strip()
    except OSError as e:
        raise usage(f"cannot read the token {path}: {e.strerror}") from None
    if not stat.S_ISREG(mode) or stat.S_IMODE(mode) & 0o077:
        raise usage(f"the token {path} is open to others: chmod 600 {path}")
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.replace("-", "").replace("_", "").isalnum():
        raise usage(
            f"the token in {path} is not one: at least {LEAST_TOKEN} letters, digits, dashes and underscores; "
            f"`openssl rand -hex 32 > {path}` makes one"
        )
    return token


def _origin(text: str) -> str:
    url = urlsplit(text)
    if (
        url.scheme not in ("http", "https")
        or not url.netloc
        or "@" in url.netloc
        or text != f"{url.scheme}://{url.netloc}"
    ):
        raise usage("--origin is a scheme and a host with its port, without a slash: http://localhost:8233")
    return text
