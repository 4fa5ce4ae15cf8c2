"""A small world around the engine: a namespace with the addresses that matter, and listeners on this machine's own.

    container ── bridge ── this machine ── veth ── namespace: 203.0.113.10 (the internet), 169.254.169.254, 10.66.0.10 …

Every one of them says `hello` to whoever gets through. The routes are single addresses, made by the test and removed.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import subprocess
import sys
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from docker.models.containers import Container

PORT = 8080
INTERNET = "203.0.113.10"
NAMESERVER = "10.66.0.53"
CLOSED = {
    "metadata": "169.254.169.254",
    "link-local": "169.254.7.7",
    "10/8": "10.66.0.10",
    "172.16/12": "172.16.66.10",
    "192.168/16": "192.168.66.10",
    "carrier NAT": "100.64.66.10",
    "benchmark": "198.18.66.10",
    "Azure's metadata": "168.63.129.16",
    "Alibaba's metadata": "100.100.100.200",
    "Oracle's metadata": "192.0.0.192",
}
KEPT_FREE = "192.168.66.0/24"
"""Docker hands out all of 192.168/16 in turn, 172.16/16 never; and an agent looks for its own network at home."""
NEAR, FAR = "198.51.100.1", "198.51.100.2"
"""This machine's end of the cable, and the namespace's."""

ANSWERING = """
import socket, socketserver, sys, threading
class Hello(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"hello\\n")
class Names(socketserver.BaseRequestHandler):
    def handle(self):
        query, sock = self.request
        end = query.index(b"\\0", 12) + 5
        a = query[end - 4 : end - 2] == b"\\0\\1"
        answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x3c\\0\\4" + socket.inet_aton("203.0.113.10") if a else b""
        counts = b"\\0\\1" + (b"\\0\\1" if a else b"\\0\\0") + b"\\0\\0\\0\\0"
        sock.sendto(query[:2] + b"\\x81\\x80" + counts + query[12:end] + answer, self.client_address)
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer.request_queue_size = 64  # all addresses are asked at once
servers = [socketserver.ThreadingTCPServer(("0.0.0.0", int(port)), Hello) for port in sys.argv[2:]]
servers.append(socketserver.ThreadingUDPServer((sys.argv[1], 53), Names))
for server in servers:
    threading.Thread(target=server.serve_forever, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""
"""Run inside the namespace, until its standard input is closed. Every name means the internet there."""


def run(*command: str, check: bool = True) -> str:
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout


@contextlib.contextmanager
def namespace(ports: Sequence[int]) -> Iterator[str]:
    """The namespace with all those addresses, each listening on `ports`; its name."""
    name, near = f"hwtest-{uuid.uuid4().hex[:6]}", f"hwt{uuid.uuid4().hex[:8]}"
    addresses = [INTERNET, NAMESERVER, *CLOSED.values()]
    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", near, "type", "veth", "peer", "name", "far", "netns", name)
        run("ip", "address", "add", f"{NEAR}/30", "dev", near)
        run("ip", "link", "set", near, "up")
        inside = ("ip", "-netns", name)
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "address", "add", f"{FAR}/30", "dev", "far")
        run(*inside, "link", "set", "far", "up")
        run(*inside, "route", "add", "default", "via", NEAR)
        for address in addresses:
            run(*inside, "address", "add", f"{address}/32", "dev", "lo")
            run("ip", "route", "add", f"{address}/32", "via", FAR)
        with subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", ANSWERING, NAMESERVER, *map(str, ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            try:
                yield name
            finally:
                assert server.stdin is not None
                server.stdin.close()
    finally:
        run("ip", "link", "delete", near, check=False)
        run("ip", "netns", "delete", name)


class _Hello(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(b"hello\n")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 64
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


@contextlib.contextmanager
def listener(address: str, port: int = 0) -> Iterator[int]:
    """One port of this machine that says hello; its number. An IPv6 address may carry its `%interface`."""
    (_, _, _, _, at), *_ = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    with (_Server6 if ":" in address else _Server)((str(at[0]), *at[1:]), _Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


@dataclass(frozen=True)
class World:
    """What is there to be reached: a name for each -> `address:port`."""

    namespace: str
    docker_host: str
    """This machine's address on the engine's default bridge: `host.docker.internal`."""
    gateway: int
    """The gateway's port there."""
    other: int
    """Another port there: what an agent has no business with."""
    elsewhere: int
    """A port of this machine's other address."""
    targets: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, namespace: str, docker_host: str, gateway: int, other: int, elsewhere: int) -> World:
        targets = {
            "gateway": f"{docker_host}:{gateway}",
            "internet": f"{INTERNET}:{PORT}",
            "another port of the host": f"{docker_host}:{other}",
            "another address of the host": f"{NEAR}:{elsewhere}",
            "another port of the nameserver": f"{NAMESERVER}:{PORT}",
            **{name: f"{address}:{PORT}" for name, address in CLOSED.items()},
        }
        return cls(namespace, docker_host, gateway, other, elsewhere, targets)

    @property
    def gateway_url(self) -> str:
        return f"http://host.docker.internal:{self.gateway}"


OPEN = {"gateway", "internet"}
"""What an isolated agent without a policy reaches."""


def reached(container: Container, targets: Mapping[str, str], expected: Collection[str] = ()) -> set[str]:
    """Which of the targets answer from inside the container. Each is given a second, those expected some more."""
    found = _asked(container, targets)
    for _ in range(5):
        late = {name: targets[name] for name in expected if name not in found}
        if not late:
            break
        found |= _asked(container, late)
    return found


def _asked(container: Container, targets: Mapping[str, str]) -> set[str]:
    probes = []
    for name, at in targets.items():
        address, _, port = at.rpartition(":")
        probes.append(f'( [ "$(nc -w 1 {address} {port} </dev/null 2>/dev/null)" = hello ] && echo "{name}" ) &')
    ran = container.exec_run(["/bin/sh", "-c", " ".join([*probes, "wait; echo all were asked"])])
    assert isinstance(ran.output, bytes)
    *names, last = ran.output.decode().splitlines()
    assert last == "all were asked"
    return set(names)
