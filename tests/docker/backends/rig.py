"""What the container backend's tests share: the shapes of their fixtures, and a registry that answers as told."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, Self

import docker
from docker.errors import NotFound

from hatchway.backends.base import SpawnSpec
from hatchway.backends.container import ContainerBackend
from hatchway.backends.container_private import LABEL, PREFIX
from hatchway.model import TeardownFacts

HOST_ID = "engine-under-test"
FACTS = TeardownFacts(backend_type="container", host_id=HOST_ID)


class MakeSpec(Protocol):
    """A spawn of `image`; fields of the label set, the scaler and the spec itself by their names."""

    def __call__(self, image: str | None, **fields: Any) -> SpawnSpec: ...


class MakeBackend(Protocol):
    """A backend for this test's installation; several of them are several workers."""

    def __call__(self, base_url: str | None = None, **settings: Any) -> ContainerBackend: ...


def quiet(message: str) -> None:
    """The progress of a spawn that nobody watches."""


class Said:
    """The progress of a spawn, line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, message: str) -> None:
        self.lines.append(message)


def containers_of(client: docker.DockerClient, installation: str) -> list[dict[str, Any]]:
    """Every container of one installation, in any state."""
    filters = {"label": [f"hatchway.installation={installation}"]}
    found: list[dict[str, Any]] = client.api.containers(all=True, filters=filters)
    return found


def remove_containers(client: docker.DockerClient, installation: str) -> None:
    for container in containers_of(client, installation):
        try:
            client.api.remove_container(container["Id"], v=True, force=True)
        except NotFound:
            continue


def forget(client: docker.DockerClient, host: str) -> None:
    """Remove the images of `host` with all their marks."""
    for volume in client.volumes.list(filters={"label": LABEL}):
        # By the address, not by the port: tests also go through proxies to the registry.
        if volume.attrs["Labels"][LABEL].startswith(f"{host.partition(':')[0]}:"):
            volume.remove()
    for image in client.api.images():
        names = [*(image.get("RepoTags") or []), *(image.get("RepoDigests") or [])]
        if any(name.startswith((f"{host}/", f"{PREFIX}/")) for name in names):
            client.api.remove_image(image["Id"], force=True)


class RudeRegistry:
    """Says yes to /v2/ and answers every request for a manifest with one status, as registries word it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
        self.asked: list[str] = []
        """The paths of what it was asked for, in order."""
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                version_check = self.path.rstrip("/") == "/v2"
                answer = b"{}" if version_check else body
                if not version_check:
                    asked.append(self.path)
                self.send_response(200 if version_check else status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)

            do_HEAD = do_GET  # noqa: N815 - http.server's own spelling

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest's output is for failures."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class LocalImage(Protocol):
    """The name of a local busybox image with this entrypoint; `changes` as in a Dockerfile."""

    def __call__(self, entrypoint: list[str], *changes: str) -> str: ...


class ShellImage(Protocol):
    """The name of a local image whose entrypoint is this shell script; `changes` as in a Dockerfile."""

    def __call__(self, script: str, *changes: str) -> str: ...
