"""A private registry on this machine, with a password: for `hatchway demo --docker` and the tests.

Runs the `docker-registry` program (CNCF distribution) on 127.0.0.1, which every Docker engine trusts without TLS.
Images are uploaded over the registry's own HTTP API, so putting one there needs no engine.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import secrets
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from hatchway.dev.images import Image
from hatchway.errors import HatchwayError

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
MANIFEST_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
START_TIMEOUT_S = 15.0


class RegistryError(HatchwayError):
    """The registry cannot run here. Says what it printed, or what to install."""


@dataclass(frozen=True)
class Login:
    """A user of the registry."""

    username: str
    password: str = field(repr=False)


class EmbeddedRegistry:
    """A `docker-registry` that keeps its blobs in `directory` and admits one user, with a random password.

    Blocking; call it in a thread from async code. `stop` and `start` keep port, password and content.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.login = Login("ci-" + secrets.token_hex(4), secrets.token_urlsafe(24))
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """`127.0.0.1:PORT`, the first part of every reference to an image here."""
        return f"127.0.0.1:{self._port}"

    def reference(self, name: str) -> str:
        """The full reference of `team/agent:1`."""
        return f"{self.host}/{name}"

    def start(self) -> str:
        """Start it and wait until it answers; its host. Raises RegistryError."""
        program = shutil.which("docker-registry")
        if program is None:
            raise RegistryError("no docker-registry on PATH (Debian: apt-get install docker-registry)")
        if not self._port:
            self._configure()
        with open(self.directory / "registry.log", "ab") as log:
            self._process = subprocess.Popen(
                [program, "serve", self.directory / "config.json"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait()
        return self.host

    def stop(self) -> None:
        """End it at once; connections break. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def hang(self) -> None:
        """From here on it accepts connections and never answers, until `resume`."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `hang`, and `stop`."""
        if self._process is None:
            self.start()
        else:
            self._process.send_signal(signal.SIGCONT)

    def put(self, name: str, image: Image) -> str:
        """Upload `image` as `repository:tag`; its full reference."""
        repository, _, tag = name.rpartition(":")
        self._put_manifest(repository, tag, MANIFEST, self._upload(repository, image))
        return self.reference(name)

    def put_index(self, name: str, images: list[Image]) -> str:
        """Upload a multi-platform `repository:tag` that offers exactly the architectures of `images`."""
        repository, _, tag = name.rpartition(":")
        entries = []
        for image in images:
            body = self._upload(repository, image)
            digest = self._put_manifest(repository, _digest(body), MANIFEST, body)
            entries.append(
                {
                    "mediaType": MANIFEST,
                    "size": len(body),
                    "digest": digest,
                    "platform": {"architecture": image.architecture, "os": "linux"},
                }
            )
        body = _json({"schemaVersion": 2, "mediaType": MANIFEST_LIST, "manifests": entries})
        self._put_manifest(repository, tag, MANIFEST_LIST, body)
        return self.reference(name)

    def digest(self, name: str) -> str:
        """`sha256:…` of what `repository:tag` names now."""
        repository, _, tag = name.rpartition(":")
        with self._client() as client:
            answer = client.head(
                f"/v2/{repository}/manifests/{tag}", headers={"Accept": f"{MANIFEST}, {MANIFEST_LIST}"}
            )
            answer.raise_for_status()
            return str(answer.headers["Docker-Content-Digest"])

    def corrupt(self, name: str) -> None:
        """Flip bytes in the middle of the layer of `repository:tag`, on the disk, behind the registry's back."""
        repository, _, tag = name.rpartition(":")
        with self._client() as client:
            manifest = client.get(f"/v2/{repository}/manifests/{tag}", headers={"Accept": MANIFEST}).json()
        digest = manifest["layers"][0]["digest"].removeprefix("sha256:")
        blob = self.directory / "data/docker/registry/v2/blobs/sha256" / digest[:2] / digest / "data"
        content = bytearray(blob.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 64] = bytes(b ^ 0xFF for b in content[middle : middle + 64])
        blob.write_bytes(content)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _configure(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        htpasswd = shutil.which("htpasswd")
        if htpasswd is None:
            raise RegistryError("no htpasswd on PATH (Debian: apt-get install apache2-utils)")
        # The password goes in by stdin: an argument would show in the list of processes.
        done = subprocess.run(
            [htpasswd, "-niB", self.login.username],
            input=self.login.password,
            capture_output=True,
            text=True,
            check=True,
        )
        users = self.directory / "htpasswd"
        users.write_text(done.stdout)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        # The registry reads YAML, of which JSON is a part.
        config = {
            "version": 0.1,
            "log": {"level": "error", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self.directory / "data")}, "delete": {"enabled": True}},
            "http": {"addr": self.host, "secret": secrets.token_hex(16)},
            "auth": {"htpasswd": {"realm": "hatchway", "path": str(users)}},
        }
        (self.directory / "config.json").write_text(json.dumps(config))

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RegistryError("the registry is not running: call start() first")
        return self._process

    def _wait(self) -> None:
        process = self._running()
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                said = (self.directory / "registry.log").read_text(errors="replace").strip().splitlines()[-3:]
                self.stop()
                raise RegistryError(f"docker-registry did not come up on {self.host}: {' | '.join(said)}")
            try:
                with self._client() as client:
                    client.get("/v2/").raise_for_status()
                return
            except httpx.TransportError:
                time.sleep(0.02)

    def _client(self) -> httpx.Client:
        # trust_env off: a proxy in the environment must not see what goes to loopback.
        return httpx.Client(
            base_url=f"http://{self.host}", auth=(self.login.username, self.login.password), timeout=60, trust_env=False
        )

    def _upload(self, repository: str, image: Image) -> bytes:
        """Put the layer and the configuration there; the manifest that binds them."""
        config = image.config()
        layer = gzip.compress(image.layer, compresslevel=1, mtime=0)
        for blob in (layer, config):
            self._put_blob(repository, blob)
        return _json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {
                    "mediaType": "application/vnd.docker.container.image.v1+json",
                    "size": len(config),
                    "digest": _digest(config),
                },
                "layers": [
                    {
                        "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                        "size": len(layer),
                        "digest": _digest(layer),
                    }
                ],
            }
        )

    def _put_blob(self, repository: str, blob: bytes) -> None:
        with self._client() as client:
            if client.head(f"/v2/{repository}/blobs/{_digest(blob)}").status_code == 200:
                return
            started = client.post(f"/v2/{repository}/blobs/uploads/")
            started.raise_for_status()
            where = httpx.URL(started.headers["Location"]).copy_merge_params({"digest": _digest(blob)})
            client.put(where, content=blob, headers={"Content-Type": "application/octet-stream"}).raise_for_status()

    def _put_manifest(self, repository: str, tag: str, media_type: str, body: bytes) -> str:
        with self._client() as client:
            where = f"/v2/{repository}/manifests/{tag}"
            client.put(where, content=body, headers={"Content-Type": media_type}).raise_for_status()
        return _digest(body)


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
