"""The host's docker config: which of its entries is for an image, and whom it sends to for the password.

The file is Docker's config.json, with the paths in `auths` that containers-auth.json(5) has. The order for one image:

1. the longest key that is a prefix of its name, at a slash: `ghcr.io/team/app`, `ghcr.io/team`, `ghcr.io`; for one
   key, its helper in `credHelpers` comes before its entry in `auths`, as in Docker
2. for the registry itself: its helper in `credHelpers`, which then is the only one asked; else `credsStore`, and where
   that has nothing its entry in `auths`

A helper that is not installed is passed over with a warning; one that fails is an error, never an anonymous pull.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from hatchway.errors import AuthError
from hatchway.foreign_json import parse_foreign
from hatchway.registry.auth import IDENTITY_TOKEN_USERNAME, RegistryAuth
from hatchway.registry.credential_helper import PREFIX, TIME_LIMIT, HelperMissing, ask_helper
from hatchway.registry.reference import DOCKER_HUB, ImageReference

log = structlog.get_logger(__name__)

SOURCE = "host's docker config"
MOST_BYTES = 1024 * 1024
_HUB = frozenset({DOCKER_HUB, "index.docker.io", "registry-1.docker.io"})


@dataclass(frozen=True)
class Entry:
    """One place of the file that is for an image. `key` is as `_normal` spells it."""

    key: str
    helper: str | None = None
    """Asked for the registry; None: the credentials stand in the file."""
    section: str = "auths"
    alone: bool = False
    """Nothing after it is asked, whatever it answers."""


class DockerConfig:
    """One file, as read: rotated credentials are in force at the next pull."""

    def __init__(self, content: Mapping[str, Any], path: str) -> None:
        # Of two spellings of one registry the first in the file is its entry, so it is put in last.
        self._auths = {_normal(key): value for key, value in reversed(_section(content, "auths", path).items())}
        self._helpers = {_normal(key): value for key, value in reversed(_section(content, "credHelpers", path).items())}
        self._store = content.get("credsStore") or None
        self._path = path

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> DockerConfig | None:
        """That of the worker's user: `$DOCKER_CONFIG/config.json`, else `~/.docker/config.json`. Blocks.

        None where there is no such file. Raises AuthError where it cannot be read or is none.
        """
        directory = environ.get("DOCKER_CONFIG") or os.path.join(environ.get("HOME") or "/", ".docker")
        path = os.path.join(directory, "config.json")
        try:
            with open(path, "rb") as file:
                content = file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as e:
            raise AuthError(f"the docker config {path} cannot be read: {os.strerror(e.errno or 0)}") from None
        if len(content) > MOST_BYTES:
            raise AuthError(f"the docker config {path} is larger than {MOST_BYTES // 1024} KiB")
        try:
            parsed = parse_foreign(content)
        except ValueError:  # its text quotes the file
            raise AuthError(f"the docker config {path} is not JSON") from None
        if not isinstance(parsed, dict):
            raise AuthError(f"the docker config {path} is not a JSON object")
        return cls(parsed, path)

    def entries(self, image: ImageReference) -> Iterator[Entry]:
        """What is for this image, in the order in which it is asked."""
        for key in _prefixes(image):
            if key in self._helpers:
                yield Entry(key, self._helpers[key], "credHelpers", alone=True)
                return
            if "/" in key and _says_something(self._auths.get(key)):
                yield Entry(key)
                return
        registry = _normal(image.registry)
        if self._store is not None:
            yield Entry(registry, self._store, "credsStore")
        if _says_something(self._auths.get(registry)):
            yield Entry(registry)

    async def credentials(
        self, image: ImageReference, environ: Mapping[str, str], limit: timedelta = TIME_LIMIT
    ) -> tuple[RegistryAuth | None, str]:
        """The credentials for the image, or None, and in either case the reason, for people.

        Raises AuthError and AuthUnavailable, which name the file and the place in it, never what stands there.
        """
        reasons: list[str] = []
        for entry in self.entries(image):
            where = f"{entry.section}[{entry.key}]" if entry.section != "credsStore" else "credsStore"
            if entry.helper is None:
                return self._written(entry, image, f"{self._path}: {where}"), f"{where} of {self._path}"
            try:
                found = await self._from_helper(entry.helper, image, environ, limit)
            except HelperMissing as e:
                log.warning("a credential helper is passed over", config=self._path, place=where, why=str(e))
                reasons.append(f"{where} of {self._path}: {e}")
            except AuthError as e:
                raise type(e)(f"{self._path}: {where}: {e}") from None
            else:
                if found is not None:
                    return found, f"{where} of {self._path} ({PREFIX}{entry.helper})"
                reasons.append(f"{where} of {self._path}: {PREFIX}{entry.helper} has nothing for {image.registry}")
            if entry.alone:
                break
        return None, "; ".join(reasons) or f"{self._path} has nothing for {image.registry}"

    @staticmethod
    async def _from_helper(
        helper: Any, image: ImageReference, environ: Mapping[str, str], limit: timedelta
    ) -> RegistryAuth | None:
        if not isinstance(helper, str):
            raise AuthError("is not the name of a credential helper")
        answer = await ask_helper(helper, image.auth_key, environ, limit)
        if answer is None:
            return None
        return _checked(
            image.registry, answer.username, answer.secret, identity=answer.username == IDENTITY_TOKEN_USERNAME
        )

    def _written(self, entry: Entry, image: ImageReference, where: str) -> RegistryAuth:
        written = self._auths[entry.key]
        try:
            username, password = written.get("username") or "", written.get("password") or ""
            if auth := written.get("auth"):
                username, password = _decoded(auth)
            if token := written.get("identitytoken"):
                return _checked(image.registry, username or IDENTITY_TOKEN_USERNAME, token, identity=True)
            if not password and written.get("registrytoken"):
                raise AuthError("holds a registrytoken, which ends within minutes; log in again with a password")
            return _checked(image.registry, username, password, identity=username == IDENTITY_TOKEN_USERNAME)
        except AuthError as e:
            raise AuthError(f"{where}: {e}") from None


async def docker_config_credentials(
    image: ImageReference, environ: Mapping[str, str], limit: timedelta = TIME_LIMIT
) -> tuple[RegistryAuth | None, str]:
    """What this host's docker config has for the image, and where, or why not. Raises as `credentials` does."""
    config = await asyncio.to_thread(DockerConfig.read, environ)
    if config is None:
        return None, "this worker's user has no docker config"
    return await config.credentials(image, environ, limit)


def _prefixes(image: ImageReference) -> Iterator[str]:
    """`ghcr.io/a/b`, `ghcr.io/a`, `ghcr.io`."""
    registry = _normal(image.registry)
    parts = image.repository.split("/")
    for length in range(len(parts), 0, -1):
        yield "/".join([registry, *parts[:length]])
    yield registry


def _normal(key: str) -> str:
    """One spelling of a key: no scheme, no API version, the host in lower case, Docker Hub's names as one."""
    for scheme in ("https://", "http://"):
        key = key.removeprefix(scheme)
    host, _, path = key.rstrip("/").partition("/")
    host = host.lower()
    if path in ("v1", "v2"):
        path = ""
    return "/".join(filter(None, (DOCKER_HUB if host in _HUB else host, path)))


def _section(content: Mapping[str, Any], name: str, path: str) -> dict[str, Any]:
    section = content.get(name) or {}
    if not isinstance(section, dict):
        raise AuthError(f"the docker config {path}: {name} is not a JSON object")
    return section


def _says_something(entry: Any) -> bool:
    """`docker login` leaves an empty entry for what it gave to a credential store."""
    return isinstance(entry, dict) and any(
        entry.get(key) for key in ("auth", "username", "password", "identitytoken", "registrytoken")
    )


def _decoded(auth: Any) -> tuple[str, str]:
    try:
        text = base64.b64decode(auth, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, TypeError, ValueError):
        raise AuthError("its auth is not base64 of USER:PASSWORD; log in again") from None
    username, colon, password = text.partition(":")
    if not colon:
        raise AuthError("its auth is not base64 of USER:PASSWORD; log in again")
    return username, password.strip("\0")  # Docker pads with NULs


def _uncarried(secret: str) -> bool:
    return "\0" in secret or any("\ud800" <= char <= "\udfff" for char in secret)


def _checked(registry: str, username: Any, secret: Any, *, identity: bool) -> RegistryAuth:
    if not isinstance(username, str) or not isinstance(secret, str):
        raise AuthError("its user or password is not text")
    if not secret or not username:
        raise AuthError("it has only one of user and password; log in again")
    if (":" in username and not identity) or not username.isprintable() or _uncarried(secret):
        raise AuthError("its user or password holds a character that a registry login cannot carry")
    return RegistryAuth(registry, username, secret, identity_token=identity, source=SOURCE)
