"""Remembering on the engine which images came there by somebody's credentials.

The record lies on the engine, not on a worker: several workers, on several machines, share one engine, and none may
forget. Images cannot be labelled after the fact, so there are two marks, and either is enough:

- a volume `hatchway-private-<hash of registry/repository>`, made *before* the pull: a worker killed between the pull
  and its record leaves no private image that looks public. One empty directory per private repository.
- a tag `hatchway-private/<hash>:<…>` on the image itself, made after the pull. It shares the image's fate: `docker
  volume prune` takes the volume, but no prune takes the tag and leaves the image.

Being asked costs a job without credentials one question to the registry; a mark that stays too long costs nothing else.
"""

from __future__ import annotations

import hashlib
from typing import Any

import structlog

from hatchway.backends.container_engine import Client, Engine
from hatchway.backends.container_errors import EngineRefused
from hatchway.registry.reference import ImageReference

log = structlog.get_logger(__name__)

PREFIX = "hatchway-private"
LABEL = "hatchway.private-repository"


def is_mark(reference: ImageReference) -> bool:
    """Whether a reference names a mark instead of an image: through it, a private image would look like another one."""
    return reference.repository.startswith(f"{PREFIX}/")


class PrivateImages:
    """The marks of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def expect(self, reference: ImageReference) -> None:
        """Note, before a pull with credentials, that this repository is one. Idempotent."""
        name = f"{PREFIX}-{_key(reference)}"
        labels = {LABEL: reference.name}
        await self._engine.call("note a private repository", lambda c: c.create_volume(name, labels=labels))

    async def mark(self, reference: ImageReference, image_id: str) -> None:
        """Tag an image that a pull with credentials brought. Idempotent."""
        repository, tag = f"{PREFIX}/{_key(reference)}", _tag(reference, image_id)
        await self._engine.call("mark a private image", lambda c: c.tag(image_id, repository, tag))

    async def holds(self, reference: ImageReference, tags: tuple[str, ...]) -> bool:
        """Whether a cached image of this repository, which bears these tags, came by somebody's credentials."""
        key = _key(reference)
        # Podman shows a name without a host as localhost/…, so the mark is looked for inside.
        if any(f"{PREFIX}/{key}:" in tag for tag in tags):
            return True
        try:
            await self._engine.call("look up a private repository", lambda c: c.inspect_volume(f"{PREFIX}-{key}"))
        except EngineRefused as e:
            if e.not_found:
                return False
            raise
        return True

    async def sweep(self, reference: ImageReference, keep: str) -> None:
        """Remove images of this repository whose tag moved on, so that only our mark still names them.

        Without it every new version of a private `latest` would stay for ever: a tagged image is not dangling. Images
        that were pulled by digest have no other name either, and stay.
        """
        repository = f"{PREFIX}/{_key(reference)}"

        def work(client: Client) -> None:
            for image in client.images(filters={"reference": f"{repository}:*"}):
                if image["Id"] != keep and _only_ours(image, repository):
                    _remove(client, image)

        await self._engine.call("remove superseded private images", work)


def _only_ours(image: dict[str, Any], repository: str) -> bool:
    return all(f"{repository}:t-" in tag for tag in image.get("RepoTags") or [])


def _remove(client: Client, image: dict[str, Any]) -> None:
    for tag in image["RepoTags"]:
        try:
            client.remove_image(tag)
        except Exception as e:  # in use by a container, or removed by somebody else: the next sweep sees it again
            log.debug("private_image_kept", image_id=image["Id"], error=str(e))


def _key(reference: ImageReference) -> str:
    return hashlib.sha256(reference.name.lower().encode()).hexdigest()[:40]


def _tag(reference: ImageReference, image_id: str) -> str:
    kind = "d" if reference.digest else "t"
    return f"{kind}-{image_id.removeprefix('sha256:')[:40]}"
