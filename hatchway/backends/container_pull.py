"""Getting an image: who may use it, when it is pulled, how a pull is watched, and what it must be for.

With credentials the registry is asked first, with those, even when the image is already here: a cache must not open
what the registry would not. Without credentials a cached image is used as it is, unless it came here by somebody's
credentials (see container_private.py): then the registry is asked for it without any.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from hatchway.backends.base import Progress
from hatchway.backends.container_engine import Client, Engine
from hatchway.backends.container_errors import EngineRefused, EngineUnreachable, engine_error, registry_error
from hatchway.backends.container_private import PrivateImages
from hatchway.backends.container_progress import PullProgress
from hatchway.config.schema import PullPolicy
from hatchway.errors import InvalidReference, PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from hatchway.registry.auth import RegistryAuth
from hatchway.registry.limits import Account, RegistryLimits, asked_wait
from hatchway.registry.reference import ImageReference, parse_reference

PULL_STALL = timedelta(seconds=60)
"""A pull that says nothing for so long hangs: engines print progress several times a second, extracting too."""
PULL_TIMEOUT = timedelta(hours=1)
"""The bound of one pull that does make progress. A spawn's own timeout is usually shorter, and cancels it."""

_RUNS_TOO = {"amd64": {"386"}, "arm64": {"arm"}}
"""What a processor runs beside its own kind."""
_PLATFORM = re.compile(r"(?P<os>linux|windows)/(?P<arch>[a-z0-9]+)(?:/v\d+)?")


@dataclass(frozen=True)
class Image:
    """An image that is on the engine now. `command` is its entrypoint and its arguments."""

    id: str
    arch: str
    command: tuple[str, ...]
    path: str | None
    working_dir: str
    tags: tuple[str, ...]
    digests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """An image as one spawn wants it. `secrets` are masked in whatever the engine says."""

    reference: ImageReference
    policy: PullPolicy
    auth: RegistryAuth | None
    platform: str | None
    secrets: frozenset[str]

    @property
    def account(self) -> Account:
        """Whom the registry counts when it is asked."""
        return Account(self.reference.registry, self.auth.username if self.auth else None)

    @property
    def secret_values(self) -> frozenset[str]:
        return self.secrets | ({self.auth.token} if self.auth else set())


class Images:
    """The images of one engine."""

    def __init__(self, engine: Engine, stall: timedelta = PULL_STALL) -> None:
        self._engine = engine
        self._stall = stall
        self._private = PrivateImages(engine)
        self._limits = RegistryLimits()

    async def ensure(self, wanted: Wanted, progress: Progress) -> Image:
        """The image, present and allowed for this spawn. Raises SpawnError."""
        expected = await self._expected_platform(wanted)
        present = await self.inspect(wanted.reference)
        fits = present is not None and _fits(present, expected)
        asked = await self._may_use(wanted, present, progress)
        if wanted.policy is PullPolicy.NEVER:
            return self._never_pulled(wanted, present, fits, asked, expected)
        if present is not None and fits and asked and wanted.policy is PullPolicy.IF_NOT_PRESENT:
            return present
        return await self._pulled(wanted, present, expected, progress)

    async def inspect(self, reference: ImageReference) -> Image | None:
        """The image as it lies on the engine, or None."""
        try:
            found = await self._engine.call("look up an image", lambda c: c.inspect_image(reference.normalized))
        except EngineRefused as e:
            if e.not_found:
                return None
            raise
        image = _image(found)
        # Some image stores find a digest under whatever name: then it is somebody else's, with its own permissions.
        if reference.digest and not any(_names(listed, reference) for listed in image.digests):
            return None
        return image

    async def by_id(self, image_id: str) -> Image | None:
        """The image of a container that exists already, or None where it was removed by force."""
        try:
            return _image(await self._engine.call("look up an image", lambda c: c.inspect_image(image_id)))
        except EngineRefused as e:
            if e.not_found:
                return None
            raise

    async def _expected_platform(self, wanted: Wanted) -> str:
        named = _PLATFORM.fullmatch(wanted.platform or "")
        return named[0] if named else (await self._engine.facts()).platform

    async def _may_use(self, wanted: Wanted, present: Image | None, progress: Progress) -> bool:
        """Whether a cached image may be used as it is. False: only a pull, which asks the registry itself, can tell."""
        if wanted.auth is not None:
            progress(f"asking {wanted.reference.registry} for {wanted.reference.familiar}")
            return await self._ask(wanted)
        if present is None or not await self._private.holds(wanted.reference, present.tags):
            return True
        progress(f"asking {wanted.reference.registry} whether anyone may read {wanted.reference.familiar}")
        try:
            return await self._ask(wanted)
        except PermanentSpawnError as e:
            raise PermanentSpawnError(
                SpawnCode.AUTH_DENIED,
                f"{wanted.reference.familiar} is on this engine because another job had credentials for it; this job "
                f"has none, and the registry does not give it to everybody ({e})",
            ) from None

    async def _ask(self, wanted: Wanted) -> bool:
        """Whether the registry says that these credentials may read the image; raises what it says instead of yes.

        False where the engine cannot ask (Podman has no such call).
        """
        self._refuse_limited(wanted)
        name, auth = wanted.reference.normalized, _auth_config(wanted.auth)
        try:
            await self._engine.call(
                f"ask the registry for {wanted.reference.familiar}",
                lambda c: c.inspect_distribution(name, auth_config=auth),
                lane=self._engine.pulls,
            )
        except EngineRefused as e:
            if e.no_such_call:
                return False
            raise await self._registry_error(e, wanted) from None
        except EngineUnreachable as e:
            raise await self._whose_silence(wanted, e) from None
        self._limits.answered(wanted.account)
        return True

    def _never_pulled(self, wanted: Wanted, present: Image | None, fits: bool, asked: bool, expected: str) -> Image:
        name = wanted.reference.familiar
        if present is None:
            raise PermanentSpawnError(
                SpawnCode.IMAGE_NOT_FOUND, f"{name} is not on this engine, and pullPolicy Never forbids to pull it"
            )
        if not fits:
            raise _wrong_architecture(name, present, expected)
        if not asked:
            raise PermanentSpawnError(
                SpawnCode.AUTH_DENIED,
                f"this engine cannot ask the registry who may read {name}, and pullPolicy Never forbids to find out by "
                "a pull; use IfNotPresent",
            )
        return present

    async def _pulled(self, wanted: Wanted, before: Image | None, expected: str, progress: Progress) -> Image:
        if wanted.auth is not None:
            await self._private.expect(wanted.reference)
        await self._pull(wanted, progress)
        image = await self.inspect(wanted.reference)
        if image is None:
            raise TransientSpawnError(
                SpawnCode.IMAGE_NOT_FOUND,
                f"the pull of {wanted.reference.familiar} ended without the image: the engine was restarted, or "
                "somebody prunes images there",
            )
        if wanted.auth is not None:
            await self._private.mark(wanted.reference, image.id)
            if before is not None and before.id != image.id:
                await self._private.sweep(wanted.reference, keep=image.id)
        if not _fits(image, expected):
            raise _wrong_architecture(wanted.reference.familiar, image, expected)
        return image

    async def _pull(self, wanted: Wanted, progress: Progress) -> None:
        self._refuse_limited(wanted)
        given_up = threading.Event()
        layers = PullProgress(wanted.reference.familiar, progress)
        progress(f"pulling {wanted.reference.familiar}")
        try:
            await self._engine.call(
                f"pull {wanted.reference.familiar}",
                lambda c: _stream_pull(c, wanted, self._stall, given_up, layers.take),
                timeout=PULL_TIMEOUT,
                lane=self._engine.pulls,
            )
        except EngineRefused as e:
            raise await self._registry_error(e, wanted) from None
        except EngineUnreachable as e:
            raise await self._whose_silence(wanted, e) from None
        finally:
            given_up.set()
        self._limits.answered(wanted.account)

    def _refuse_limited(self, wanted: Wanted) -> None:
        """Not asked before its time: whoever asks meanwhile only adds to what it counts."""
        left = self._limits.left(wanted.account)
        if left is not None:
            raise TransientSpawnError(
                SpawnCode.RATE_LIMITED,
                f"registry {wanted.reference.registry} limits how often images are pulled, and has asked for a pause; "
                f"it is asked for {wanted.reference.familiar} again in {left.total_seconds():.0f} s",
                retry_after=left,
            )

    async def _registry_error(self, e: EngineRefused, wanted: Wanted) -> SpawnError:
        error = registry_error(
            e,
            wanted.reference,
            credentials=wanted.auth.source if wanted.auth else None,
            platform=await self._expected_platform(wanted),
            secrets=wanted.secret_values,
        )
        if error.code is SpawnCode.RATE_LIMITED and isinstance(error, TransientSpawnError):
            error.retry_after = self._limits.limited(wanted.account, asked_wait(e.text))
        return error

    async def _whose_silence(self, wanted: Wanted, e: EngineUnreachable) -> SpawnError:
        """An engine that still answers a ping was not the one that hung: its registry was."""
        try:
            await self._engine.call("answer a ping", lambda c: c.ping())
        except (EngineUnreachable, EngineRefused):
            return engine_error(e)
        return TransientSpawnError(
            SpawnCode.REGISTRY_UNREACHABLE,
            f"registry {wanted.reference.registry} stopped answering while {wanted.reference.familiar} was asked for: "
            f"nothing came for {self._stall.total_seconds():g} s",
        )


def _stream_pull(
    client: Client,
    wanted: Wanted,
    stall: timedelta,
    given_up: threading.Event,
    take: Callable[[dict[str, Any]], None],
) -> None:
    # Not the SDK's own pull(): that reads without any timeout, so a registry that hangs would hold its thread for ever.
    parameters = {"fromImage": wanted.reference.name, "tag": wanted.reference.version}
    if named := _PLATFORM.fullmatch(wanted.platform or ""):
        parameters["platform"] = named[0]
    header = base64.urlsafe_b64encode(json.dumps(_auth_config(wanted.auth)).encode()).decode()
    with client.post(
        f"{client.base_url}/v{client.api_version}/images/create",
        params=parameters,
        headers={"X-Registry-Auth": header},
        stream=True,
        timeout=(10, stall.total_seconds()),
    ) as response:
        if response.status_code >= 400:
            raise EngineRefused("pull", response.status_code, _message(response))
        for line in response.iter_lines(chunk_size=None):
            if given_up.is_set():
                return
            if not line.strip():
                continue
            event = json.loads(line)
            if "error" in event:
                # Errors that come once the answer has begun stand only here; the SDK would call them "not found".
                raise EngineRefused("pull", 0, str(event.get("errorDetail", {}).get("message") or event["error"]))
            take(event)


def _message(response: Any) -> str:
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return str(response.text)


def _auth_config(auth: RegistryAuth | None) -> dict[str, str]:
    """What the engine sends to the registry. Never None: the SDK would then read this user's own docker config."""
    if auth is None:
        return {}
    if auth.identity_token:
        return {"identitytoken": auth.token, "serveraddress": auth.registry_host}
    return {"username": auth.username, "password": auth.token, "serveraddress": auth.registry_host}


def _image(found: dict[str, Any]) -> Image:
    config = found.get("Config") or {}
    env = dict(entry.partition("=")[::2] for entry in config.get("Env") or [])
    return Image(
        id=found["Id"],
        arch=found.get("Architecture") or "",
        command=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
        path=env.get("PATH"),
        working_dir=config.get("WorkingDir") or "/",
        tags=tuple(found.get("RepoTags") or ()),
        digests=tuple(found.get("RepoDigests") or ()),
    )


def _names(listed: str, reference: ImageReference) -> bool:
    try:
        return parse_reference(listed) == replace(reference, tag=None)
    except InvalidReference:  # `<none>@sha256:…`, of an image without a repository
        return False


def _fits(image: Image, platform: str) -> bool:
    arch = platform.split("/")[1]
    # An image that somebody imported from an archive may say nothing about itself.
    return image.arch in ("", arch) or image.arch in _RUNS_TOO.get(arch, ())


def _wrong_architecture(name: str, image: Image, platform: str) -> PermanentSpawnError:
    return PermanentSpawnError(
        SpawnCode.WRONG_ARCHITECTURE,
        f"{name} is for {image.arch}, and this scaler runs {platform}; push a variant for it, or use another scaler",
    )
