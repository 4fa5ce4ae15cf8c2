"""A receiver of signed events with a certificate of its own authority, that answers as a test tells it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

NAME = "hooks.example.test"

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes = field(repr=False)


@dataclass
class Receiver:
    port: int
    ca_file: Path
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    answers: list[Answer] = field(default_factory=list)
    """Taken one after the other; the last one stays."""

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}/events"


def answer(status: int, body: bytes = b"", **headers: str) -> Answer:
    async def write(writer: asyncio.StreamWriter) -> None:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body)
        await writer.drain()

    return write


async def endless(writer: asyncio.StreamWriter) -> None:
    """A refusal whose words never end."""
    writer.write(b"HTTP/1.1 400 Said\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        await writer.drain()


async def silence(writer: asyncio.StreamWriter) -> None:
    """Takes the request and never answers."""
    while not writer.is_closing():
        await asyncio.sleep(0.05)


async def trickling(writer: asyncio.StreamWriter) -> None:
    """Takes the event, and then talks for ever."""
    writer.write(b"HTTP/1.1 202 Said\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"1\r\nx\r\n")
        await asyncio.sleep(0.05)


async def broken_off(writer: asyncio.StreamWriter) -> None:
    """Takes the event, and dies in the middle of saying so."""
    writer.write(b"HTTP/1.1 202 Said\r\nContent-Length: 100\r\n\r\nabc")
    await writer.drain()
    writer.close()


@asynccontextmanager
async def a_receiver(directory: Path, name: str = NAME) -> AsyncIterator[Receiver]:
    """On a free port of 127.0.0.1, with a certificate for `name`, answering 202."""
    ca_file, chain = _certificates(directory, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    receiver = Receiver(0, ca_file, answers=[answer(202)])
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        receiver.connections += 1
        try:
            receiver.requests.append(await _request(reader))
            reply = receiver.answers[0] if len(receiver.answers) == 1 else receiver.answers.pop(0)
            await reply(writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return  # who asked has gone, or the test has
        finally:
            writer.close()
            serving.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in serving:
            task.cancel()


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in rest)}
    return Request(line, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def _certificates(directory: Path, name: str) -> tuple[Path, Path]:
    """Files: the authority's certificate; key and certificate for `name`, which may be an address."""
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = _signed("authority of a test", authority.public_key(), authority, None)
    leaf = _signed(name, key.public_key(), authority, ca.subject)
    ca_file, chain = directory / f"{name}.ca.pem", directory / f"{name}.pem"
    ca_file.write_bytes(ca.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain.write_bytes(private + leaf.public_bytes(Encoding.PEM))
    return ca_file, chain


def _signed(
    name: str, key: ec.EllipticCurvePublicKey, by: ec.EllipticCurvePrivateKey, issuer: x509.Name | None
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None:
        try:
            alternative: x509.GeneralName = x509.IPAddress(ip_address(name))
        except ValueError:
            alternative = x509.DNSName(name)
        builder = builder.add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
    return builder.sign(by, SHA256())
