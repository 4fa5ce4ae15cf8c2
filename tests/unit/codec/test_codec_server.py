"""The codec endpoint: the UI's protocol, for a token, for listed origins, on loopback."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from hatchway.codec import VARIABLE, EncryptingCodec, codec_from
from hatchway.codec_server import CodecServer, Settings
from hatchway.converter import converter_from
from tests.unit.codec.rig import WriteKeys

TOKEN = "t" * 32
UI = "http://localhost:8233"
MARKER = "marker-of-this-test"


@pytest.fixture
def keys(write_keys: WriteKeys) -> Path:
    return write_keys("a", "b")


@pytest.fixture
def server(keys: Path) -> Iterator[CodecServer]:
    codec = codec_from({VARIABLE: str(keys)})
    assert isinstance(codec, EncryptingCodec)
    with CodecServer(Settings(0, TOKEN, frozenset({UI})), codec) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def http(server: CodecServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, trust_env=False) as client:
        yield client


async def encrypted(keys: Path, *values: Any) -> list[Payload]:
    return await converter_from({VARIABLE: str(keys)}).encode(values)


def body(payloads: list[Payload]) -> dict[str, Any]:
    return json_format.MessageToDict(Payloads(payloads=payloads))


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def shown(answer: httpx.Response) -> list[Any]:
    return [json.loads(base64.b64decode(payload["data"])) for payload in answer.json()["payloads"]]


@pytest.mark.parametrize("way", ["header", "path"])
async def test_payloads_are_shown_to_whoever_has_the_token(http: httpx.Client, keys: Path, way: str) -> None:
    payloads = await encrypted(keys, {"labels": [MARKER]}, 7)
    headers = {"X-Namespace": "default", **(bearer() if way == "header" else {})}

    answer = http.post("/decode" if way == "header" else f"/{TOKEN}/decode", json=body(payloads), headers=headers)

    assert answer.status_code == 200
    assert shown(answer) == [{"labels": [MARKER]}, 7]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/decode", {}), ("/decode", bearer("x" * 32)), ("/decode", bearer(TOKEN[:-1])),
        ("/decode", {"Authorization": "Bearer"}),
        ("/decode", {"Authorization": TOKEN}), ("/decode", {"Authorization": f"Basic {TOKEN}"}), ("/x/decode", {}),
        (f"/{TOKEN}/x/decode", {}), (f"/decode?token={TOKEN}", {}), ("/encode", {}),
    ],
)  # fmt: skip
async def test_nobody_else_is_shown_anything(
    http: httpx.Client, keys: Path, path: str, headers: dict[str, str]
) -> None:
    answer = http.post(path, json=body(await encrypted(keys, MARKER)), headers=headers)

    assert answer.status_code == 401
    assert MARKER not in answer.text


async def test_it_decrypts_only(http: httpx.Client) -> None:
    answers = [http.post(path, json=body([]), headers=bearer()) for path in ("/encode", "/", "/metrics")]
    answers += [http.get("/decode", headers=bearer())]

    assert [answer.status_code for answer in answers] == [404, 404, 404, 501]


async def test_a_payload_that_cannot_be_decrypted_says_why_in_its_place(
    http: httpx.Client, keys: Path, write_keys: WriteKeys
) -> None:
    (fine,) = await encrypted(keys, MARKER)
    (unknown,) = await encrypted(write_keys("elsewhere", file="others"), MARKER)
    (bad,) = await encrypted(keys, MARKER)
    bad.data = bad.data[:-3]
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'"plain"')

    answer = http.post("/decode", json=body([unknown, fine, bad, plain]), headers=bearer())

    first, second, third, fourth = shown(answer)
    assert "the key 'elsewhere', which is not in" in first
    assert "altered or cut" in third
    assert (second, fourth) == (MARKER, "plain")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (UI, True), ("http://localhost:8234", False), ("https://localhost:8233", False), ("http://evil.example", False),
        ("null", False), (f"{UI}.evil.example", False),
    ],
)  # fmt: skip
async def test_only_pages_of_listed_origins_may_ask(http: httpx.Client, keys: Path, origin: str, allowed: bool) -> None:
    preflight = http.options("/decode", headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
    answer = http.post("/decode", json=body(await encrypted(keys, MARKER)), headers={**bearer(), "Origin": origin})

    assert (preflight.status_code, answer.status_code) == ((204, 200) if allowed else (403, 403))
    for one in (preflight, answer):
        assert one.headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)
    assert "authorization" in preflight.headers.get("Access-Control-Allow-Headers", "") or not allowed


async def test_the_uis_own_requests_are_served(http: httpx.Client, keys: Path) -> None:
    """As its release 2.54 sends them from a browser, with the token in the address that it was told."""
    path = f"/{TOKEN}/decode?preserveStorageRefs=true"
    browser = {
        "Origin": UI,
        "Referer": f"{UI}/",
        "Sec-Fetch-Mode": "cors",
        "Sec-Fetch-Site": "same-site",
        "Accept": "*/*",
    }
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type,x-namespace"}

    preflight = http.options(path, headers={**browser, **asking})
    answer = http.post(
        path,
        json=body(await encrypted(keys, {"labels": [MARKER]}, "note")),
        headers={**browser, "X-Namespace": "default"},
    )

    may = preflight.headers["Access-Control-Allow-Headers"].lower()
    assert (preflight.status_code, preflight.headers["Access-Control-Allow-Origin"]) == (204, UI)
    assert {"content-type", "x-namespace"} <= {name.strip() for name in may.split(",")}
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    assert answer.headers["Access-Control-Allow-Origin"] == UI
    assert shown(answer) == [{"labels": [MARKER]}, "note"]


@pytest.mark.parametrize("name", ["evil.example:{port}", "127.0.0.1.evil.example:{port}", "localhost", "x@127.0.0.1:1"])
async def test_a_name_that_somebody_let_point_to_loopback_is_refused(
    http: httpx.Client, server: CodecServer, keys: Path, name: str
) -> None:
    host = name.format(port=server.server_address[1])

    answer = http.post("/decode", json=body(await encrypted(keys, MARKER)), headers={**bearer(), "Host": host})

    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"[" * 100_000, 400),
        (b'{"payloads": 1}', 400),
        (b"\xff", 400),
        (b'{"hunter2": 1}', 400),
    ],
)
async def test_what_is_no_list_of_payloads_is_refused_and_not_quoted(
    http: httpx.Client, content: bytes, status: int
) -> None:
    answer = http.post("/decode", content=content, headers=bearer())

    assert answer.status_code == status
    assert "hunter2" not in answer.text


async def test_a_body_without_bounds_is_not_read(http: httpx.Client, server: CodecServer) -> None:
    with socket.create_connection(server.server_address[:2], timeout=20) as caller:  # type: ignore[arg-type]
        lines = [
            "POST /decode HTTP/1.1",
            f"Host: 127.0.0.1:{server.server_address[1]}",
            f"Authorization: Bearer {TOKEN}",
        ]
        caller.sendall("\r\n".join([*lines, f"Content-Length: {10**9}", "", "{}"]).encode())
        answer = caller.recv(4096)
    chunked = http.post("/decode", content=iter([b"{}"]), headers=bearer())

    assert answer.startswith(b"HTTP/1.1 413")
    assert chunked.status_code == 413


async def test_nothing_that_passes_is_written_down(
    http: httpx.Client, keys: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    http.post(f"/{TOKEN}/decode", json=body(await encrypted(keys, MARKER)))
    http.post("/x", content=b"{", headers=bearer())

    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


def test_it_listens_on_loopback_only(server: CodecServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert TOKEN not in repr(server.settings)
