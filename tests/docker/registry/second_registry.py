"""A second door to what a registry holds: the same blobs behind another kind of login.

`token_registry` is the token authentication of the distribution project
(https://distribution.github.io/distribution/spec/auth/oauth/): the registry sends the engine to a token server, which
gives an access token for a password or for a refresh token, which Docker calls an identity token.
"""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from hatchway.dev.registry import EmbeddedRegistry

ISSUER, SERVICE = "hatchway-test", "registry-under-test"


@contextmanager
def second_door(registry: EmbeddedRegistry, directory: Path, auth: dict[str, Any]) -> Iterator[str]:
    """The host of a registry that serves the blobs of `registry` to whoever passes `auth`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    config = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(registry.directory / "data")}},
        "http": {"addr": host, "secret": secrets.token_hex(16)},
        "auth": auth,
    }
    (directory / "registry.json").write_text(json.dumps(config))
    program = shutil.which("docker-registry") or "docker-registry"
    with open(directory / "registry.log", "ab") as log:
        process = subprocess.Popen([program, "serve", directory / "registry.json"], stdout=log, stderr=log)
    try:
        _wait(process, host, directory / "registry.log")
        yield host
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], host: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx.get(f"http://{host}/v2/", trust_env=False)
        except httpx.TransportError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError(f"the second registry does not come up: {log.read_text()[-500:]}")


def htpasswd(directory: Path, user: str, password: str) -> dict[str, Any]:
    """The registry's own list of users, with one."""
    program = shutil.which("htpasswd") or "htpasswd"
    done = subprocess.run([program, "-niB", user], input=password, capture_output=True, text=True, check=True)
    (directory / "htpasswd").write_text(done.stdout)
    return {"htpasswd": {"realm": "second", "path": str(directory / "htpasswd")}}


class TokenServer:
    """Gives access to whoever has the refresh token, and to nobody else."""

    def __init__(self, directory: Path, refresh_token: str) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._certificate = self._self_signed()
        self._bundle = directory / "bundle.pem"
        self._bundle.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        self.grants: list[str] = []
        """The grant type of each request."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                outer.grants.append(form["grant_type"][0])
                right = secrets.compare_digest(form.get("refresh_token", [""])[0], refresh_token)
                self._answer(200 if right else 401, {"access_token": outer._token(form["scope"][0])} if right else {})

            def do_GET(self) -> None:
                outer.grants.append("none")
                self._answer(401, {})

            def _answer(self, status: int, body: dict[str, str]) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest's output is for failures."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def auth(self) -> dict[str, Any]:
        """What makes a registry trust this server."""
        realm = f"http://127.0.0.1:{self.server.server_address[1]}/token"
        return {"token": {"realm": realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": str(self._bundle)}}

    @contextmanager
    def running(self) -> Iterator[TokenServer]:
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()

    def _self_signed(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ISSUER)])
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def _token(self, scope: str) -> str:
        kind, _, rest = scope.partition(":")
        name, _, actions = rest.rpartition(":")
        certificate = base64.b64encode(self._certificate.public_bytes(serialization.Encoding.DER)).decode()
        now = int(time.time())
        claims = {
            "iss": ISSUER, "sub": "robot", "aud": SERVICE, "exp": now + 300, "nbf": now - 60, "iat": now,
            "jti": secrets.token_hex(8), "access": [{"type": kind, "name": name, "actions": actions.split(",")}],
        }  # fmt: skip
        header = {"typ": "JWT", "alg": "RS256", "x5c": [certificate]}
        signed = ".".join(_base64url(json.dumps(part).encode()) for part in (header, claims))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64url(signature)}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
