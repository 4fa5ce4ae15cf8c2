"""An endpoint in AWS's place that never comes to its end, or comes there slowly: each call is over all the same."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hatchway import aws, aws_answers
from hatchway.aws import AwsClients, AwsUnavailable, aws_errors
from hatchway.backends import ec2_client
from hatchway.backends.ec2_client import Ec2Clients, Place
from hatchway.backends.ec2_errors import Ec2Unreachable
from hatchway.errors import HatchwayError
from tests.support.aws import IDENTITY, REGION
from tests.support.tls_receiver import Answer as Reply
from tests.support.tls_receiver import Receiver, a_receiver, answer, trickling

MOST = 256 * 1024
WITHIN_S = 1.0
FAR_LATER_S = 15.0
"""Of a call that is over within one second, on a machine with other things to do."""

Answer = Callable[[socket.socket, threading.Event], None]


def _endless_chunks(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not over.is_set():
        connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")


def _endless_without_a_length(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/xml\r\nConnection: close\r\n\r\n")
    while not over.is_set():
        connection.sendall(b" " * 65536)


def _endless_headers(connection: socket.socket, over: threading.Event) -> None:
    while not over.is_set():
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


def _trickling_body(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nContent-Length: 100000\r\n\r\n")
    while not over.wait(0.1):
        connection.sendall(b" ")


def _trickling_headers(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not over.wait(0.1):
        connection.sendall(b"x")


def _request(connection: socket.socket) -> bool:
    """Take one whole request. False: there is none any more."""
    head = b""
    while b"\r\n\r\n" not in head:
        if not (read := connection.recv(65536)):
            return False
        head += read
    head, _, body = head.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    while length and len(body) < int(length[1]):
        body += connection.recv(65536)
    return True


ENDLESS = [_endless_chunks, _endless_without_a_length, _endless_headers]
TRICKLING = [_trickling_body, _trickling_headers]


class Endpoint:
    """Answers each connection's request in one way."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def close(self) -> None:
        self._over.set()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed
                return
            self.connections += 1
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            try:
                _request(connection)
                self._answer(connection, self._over)
            except OSError:  # whoever asked has gone
                return


@contextmanager
def answering(answer: Answer) -> Iterator[Endpoint]:
    endpoint = Endpoint(answer)
    try:
        yield endpoint
    finally:
        endpoint.close()


@pytest.fixture(autouse=True)
def _identity_and_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for module in (aws, ec2_client):
        monkeypatch.setattr(module, "ATTEMPTS", 2)
        monkeypatch.setattr(module, "MOST_ANSWER", MOST)
    monkeypatch.setattr(aws, "READ_S", WITHIN_S)
    monkeypatch.setattr(ec2_client, "ANSWER_S", WITHIN_S)


@pytest.mark.parametrize("said", [*ENDLESS, *TRICKLING])
def test_a_call_of_a_service_is_over(said: Answer) -> None:
    with answering(said) as endpoint:
        began = time.monotonic()
        with pytest.raises(AwsUnavailable), aws_errors():
            AwsClients().ssm(REGION, endpoint.url).get_parameter(Name="p")

        assert time.monotonic() - began < FAR_LATER_S
        assert endpoint.connections == 2


@pytest.mark.parametrize("said", [*ENDLESS, *TRICKLING])
async def test_a_call_of_ec2_is_over(said: Answer) -> None:
    clients = Ec2Clients()
    with answering(said) as endpoint:
        began = time.monotonic()
        with pytest.raises(Ec2Unreachable):
            await clients.at(Place(REGION, endpoint.url)).call("describe_instances")

        assert time.monotonic() - began < FAR_LATER_S
        assert endpoint.connections == 2
    clients.close()


def test_an_answer_that_is_too_long_is_said_to_be_that() -> None:
    too_long = pytest.raises(AwsUnavailable, match=r"more than 0\.25 MiB")
    with answering(_endless_chunks) as endpoint, too_long, aws_errors():
        AwsClients().ssm(REGION, endpoint.url).get_parameter(Name="p")


async def test_so_is_one_of_ec2() -> None:
    clients = Ec2Clients()
    with answering(_endless_chunks) as endpoint, pytest.raises(Ec2Unreachable, match=r"more than 0\.25 MiB"):
        await clients.at(Place(REGION, endpoint.url)).call("describe_instances")
    clients.close()


def test_what_is_read_has_an_end() -> None:
    """Not only the memory that is kept: an endpoint can send for as long as somebody reads."""
    sent: list[int] = []

    def counting(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent.append(0)
        while not over.is_set():
            connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
            sent[-1] += 65536

    with answering(counting) as endpoint, pytest.raises(AwsUnavailable), aws_errors():
        AwsClients().ssm(REGION, endpoint.url).get_parameter(Name="p")

    assert max(sent) < MOST + 32 * 1024 * 1024  # and what the buffers of two sockets hold


@pytest.mark.parametrize("size", [10, 200_000])
def test_answers_on_one_connection_have_a_limit_each(size: int) -> None:
    value = "v" * size
    body = json.dumps({"Parameter": {"Name": "p", "Type": "String", "Value": value}}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n" % len(body)

    def keeping(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(head + body)
        while _request(connection):
            connection.sendall(head + body)

    with answering(keeping) as endpoint:
        client = AwsClients().ssm(REGION, endpoint.url)
        answers = [client.get_parameter(Name="p")["Parameter"]["Value"] for _ in range(3)]

    assert answers == [value] * 3
    assert endpoint.connections == 1


@pytest.fixture
async def over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receiver]:
    """An endpoint whose authority the SDK trusts, as it does AWS's own."""
    async with a_receiver(tmp_path, "127.0.0.1") as receiver:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(receiver.ca_file))
        yield receiver


async def _endless_over_tls(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 Said\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
        await writer.drain()
        await asyncio.sleep(0.001)  # or nobody would hear that whoever asked has gone


@pytest.mark.parametrize("reply", [_endless_over_tls, trickling])
async def test_a_call_over_tls_is_over(over_tls: Receiver, reply: Reply) -> None:
    over_tls.answers = [reply]
    began = time.monotonic()

    with pytest.raises(AwsUnavailable):
        await asyncio.to_thread(_read, f"https://127.0.0.1:{over_tls.port}")

    assert time.monotonic() - began < FAR_LATER_S
    assert over_tls.connections == 2


async def test_an_answer_over_tls_is_read(over_tls: Receiver) -> None:
    value = "v" * 100_000
    over_tls.answers = [answer(200, json.dumps({"Parameter": {"Value": value}}).encode())]

    assert await asyncio.to_thread(_read, f"https://127.0.0.1:{over_tls.port}") == value


def _read(url: str) -> str:
    with aws_errors():
        return AwsClients().ssm(REGION, url).get_parameter(Name="p")["Parameter"]["Value"]


def test_an_sdk_that_keeps_its_connections_elsewhere_is_refused() -> None:
    with pytest.raises(HatchwayError, match="botocore"):
        aws_answers.bound(object(), most=1, within_s=1)
