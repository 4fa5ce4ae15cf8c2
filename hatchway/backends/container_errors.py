"""What a container engine's answers mean for a spawn.

Engines number and word the same fault differently: Docker 20.10 answers 500 for most of what a registry said, newer
ones pass its status on, Podman answers 500 where Docker answers 409. So the text is matched before the status, in
several forms, and the names that a caller chose (the image, URLs) are taken out first: an image may be called `denied`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hatchway.backends.errors import quoted
from hatchway.errors import HatchwayError, PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from hatchway.registry.reference import ImageReference

_QUOTED = 400
"""Characters of an engine's own words that are passed on: enough for its longest sentence, not for a page of HTML."""


class EngineUnreachable(HatchwayError):
    """The container engine did not answer in time, or not at all. What was asked of it may still happen."""


class EngineRefused(HatchwayError):
    """The container engine answered with an error. `status` is its HTTP status, 0 for one inside a stream."""

    def __init__(self, doing: str, status: int, text: str) -> None:
        super().__init__(f"the container engine refused to {doing}: {quoted(text, _QUOTED)} (status {status})")
        self.status = status
        self.text = text

    @property
    def not_found(self) -> bool:
        return self.status == 404 or bool(re.search(r"no such (container|image|volume)", self.text, re.I))

    @property
    def name_in_use(self) -> bool:
        return bool(re.search(r"name .*(already in use|is in use)|already in use by", self.text, re.I))

    @property
    def being_removed(self) -> bool:
        return bool(
            re.search(r"removal of container .* already in progress|marked for removal|being removed", self.text, re.I)
        )

    @property
    def not_running(self) -> bool:
        forms = r"is not running|not running|can only (kill|stop) running|container state improper"
        return bool(re.search(forms, self.text, re.I))

    @property
    def no_such_call(self) -> bool:
        """The engine has no such call. Docker says "page not found"; Podman leaves several of Docker's out."""
        return self.status in (404, 405, 501) and bool(
            re.search(r"page not found|^\s*not found\s*$|not (implemented|supported)|unsupported", self.text, re.I)
        )


@dataclass(frozen=True)
class _Row:
    pattern: re.Pattern[str]
    permanent: bool
    code: SpawnCode
    sentence: str

    def error(self, words: dict[str, str]) -> SpawnError:
        message = self.sentence.format_map(words)
        return (PermanentSpawnError if self.permanent else TransientSpawnError)(self.code, message)


def _row(pattern: str, consequence: str, code: SpawnCode, sentence: str) -> _Row:
    return _Row(re.compile(pattern, re.I), consequence == "permanent", code, sentence)


_REGISTRY = (
    _row(
        r"toomanyrequests|too many requests|\b429\b|rate limit",
        "transient",
        SpawnCode.RATE_LIMITED,
        "registry {registry} limits how often images are pulled; wait, or pull {image} with credentials that may more",
    ),
    _row(
        r"no matching manifest|no match for platform|does not match the specified platform|no image found in"
        r"|does not provide the specified platform|cannot be used on this platform|exec format error",
        "permanent",
        SpawnCode.WRONG_ARCHITECTURE,
        "{image} has no variant for this engine's platform ({platform}); push one, or use another scaler",
    ),
    _row(
        r"no space left on device|disk quota exceeded|not enough space",
        "transient",
        SpawnCode.DISK_FULL,
        "the engine's disk is full while pulling {image}; free some space there (docker system df)",
    ),
    _row(
        r"verif\w* failed|failed to verify|unexpected commit digest|digest mismatch|invalid checksum"
        r"|does not match (the )?expected|digest did not match",
        "transient",
        SpawnCode.REGISTRY_UNREACHABLE,
        "registry {registry} sent a damaged layer of {image}: its content is not what its digest says; if this stays, "
        "push the image again",
    ),
    _row(
        r"unauthorized|no basic auth credentials|authentication required|incorrect username or password"
        r"|invalid username/password|\b401\b|login attempt",
        "permanent",
        SpawnCode.AUTH_DENIED,
        "registry {registry} refused {credentials} for {image}: {said}",
    ),
    _row(
        r"repository does not exist or may require",
        "permanent",
        SpawnCode.IMAGE_NOT_FOUND,
        "registry {registry} has no {image}, or shows it only to other credentials; it was asked with {credentials}",
    ),
    _row(
        r"\bdenied\b|\b403\b|forbidden|insufficient_scope|access to the resource",
        "permanent",
        SpawnCode.AUTH_DENIED,
        "registry {registry} does not let {credentials} read {image}: {said}",
    ),
    _row(
        r"manifest unknown|manifest_unknown|name unknown|name_unknown|not found|repository .* not known|\b404\b"
        r"|unknown manifest",
        "permanent",
        SpawnCode.IMAGE_NOT_FOUND,
        "registry {registry} has no {image}; check the repository, the tag and the digest",
    ),
    _row(
        r"x509|certificate|server gave http response to https client|tls: ",
        "permanent",
        SpawnCode.REGISTRY_UNREACHABLE,
        "the engine does not trust the TLS of registry {registry}: {said}; give the engine its CA, or list it as "
        "insecure",
    ),
    _row(
        r"connection refused|no such host|i/o timeout|deadline exceeded|client\.timeout|timed? ?out|tls handshake"
        r"|network is unreachable|no route to host|connection reset|broken pipe|\beof\b|server misbehaving"
        r"|unexpected (http )?status|unexpected status code|\b50[0234]\b|internal server error|bad gateway"
        r"|service unavailable|temporary failure|dial tcp",
        "transient",
        SpawnCode.REGISTRY_UNREACHABLE,
        "the engine cannot get {image} from registry {registry}: {said}",
    ),
    _row(
        r"invalid reference|invalid repository|invalid tag|must be lowercase",
        "permanent",
        SpawnCode.INVALID_SPEC,
        "the engine does not take the image reference {image}: {said}",
    ),
)

_CONTAINER = (
    _row(
        r"docker-init|catatonit|\btini\b",
        "permanent",
        SpawnCode.DAEMON_UNAVAILABLE,
        "the engine lacks its init program, which every agent runs under: install docker-init (Podman: catatonit) "
        "there; it says: {said}",
    ),
    _row(
        r"no space left on device|disk quota exceeded",
        "transient",
        SpawnCode.DISK_FULL,
        "the engine's disk is full; free some space there (docker system df)",
    ),
    _row(
        r"no command specified|no command or entrypoint",
        "permanent",
        SpawnCode.NO_AGENT,
        "{image} has no entrypoint, so there is no agent in it; give it one, or say `agent: inject` on the label set",
    ),
    _row(
        r"exec format error|does not match the (specified|detected) (host )?platform",
        "permanent",
        SpawnCode.WRONG_ARCHITECTURE,
        "{image} is not for this engine's platform ({platform}): {said}",
    ),
    _row(
        r"executable file .*not found|exec: .*(no such file|permission denied|is a directory)"
        r"|oci runtime .*command not found|starting container process caused.*no such file",
        "permanent",
        SpawnCode.COMMAND_NOT_FOUND,
        "{image} has an entrypoint that cannot be run: {said}",
    ),
    _row(
        r"range of cpus|minimum memory limit|unable to set memory limit|memory limit .*(too low|invalid)"
        r"|memory.*should be larger|cpu.*not available",
        "permanent",
        SpawnCode.INVALID_SPEC,
        "this engine cannot give the limits asked for: {said}; change `resources`",
    ),
    _row(
        r"capabilit(y|ies)",
        "permanent",
        SpawnCode.INVALID_SPEC,
        "the engine does not know a capability of `capAdd`: {said}",
    ),
    _row(
        r"cannot allocate memory|resource temporarily unavailable|too many open files|all predefined address pools",
        "transient",
        SpawnCode.CAPACITY,
        "the engine's machine is out of memory, processes, files or networks: {said}",
    ),
    _row(
        r"no such image|image not known",
        "transient",
        SpawnCode.IMAGE_NOT_FOUND,
        "{image} went away between its pull and the start: somebody prunes images on that engine",
    ),
    _row(
        r"network \S+ not found|no such network|unable to find network",
        "transient",
        SpawnCode.DAEMON_UNAVAILABLE,
        "the agent's network was removed while its container was being started; the next attempt makes another one",
    ),
    _row(
        r"no such container|no container with|marked for removal|being removed|already in progress",
        "transient",
        SpawnCode.DAEMON_UNAVAILABLE,
        "the agent's container was removed while it was being started",
    ),
)


def engine_error(e: EngineUnreachable) -> TransientSpawnError:
    """No answer from the engine: nothing is known to be wrong with the job, and another attempt may find it well."""
    return TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, str(e))


def registry_error(
    refused: EngineRefused, reference: ImageReference, *, credentials: str | None, platform: str, secrets: Iterable[str]
) -> SpawnError:
    """What a refused pull, or a refused question to the registry, means. `credentials`: whose they were, for people."""
    text = _without_names(refused.text, reference)
    words = {
        "image": reference.familiar,
        "registry": reference.registry,
        "platform": platform,
        "credentials": f"the {credentials}'s credentials" if credentials else "a pull without credentials",
        "said": _said(refused.text, secrets),
    }
    return _first(_REGISTRY, text, words) or _by_status(refused, f"pull {reference.familiar}", secrets)


def container_error(refused: EngineRefused, image: str, *, platform: str, secrets: Iterable[str]) -> SpawnError:
    """What a refused create, copy or start means."""
    words = {"image": image, "platform": platform, "said": _said(refused.text, secrets)}
    return _first(_CONTAINER, refused.text.replace(image, ""), words) or _by_status(refused, f"start {image}", secrets)


def _first(rows: Iterable[_Row], text: str, words: dict[str, str]) -> SpawnError | None:
    return next((row.error(words) for row in rows if row.pattern.search(text)), None)


def _by_status(refused: EngineRefused, doing: str, secrets: Iterable[str]) -> SpawnError:
    said = _said(refused.text, secrets)
    if 400 <= refused.status < 500:
        return PermanentSpawnError(SpawnCode.INVALID_SPEC, f"the container engine refused to {doing}: {said}")
    return TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, f"the container engine failed to {doing}: {said}")


def _said(text: str, secrets: Iterable[str]) -> str:
    secrets = tuple(secrets)
    return quoted(text, _QUOTED, secrets)


def _without_names(text: str, reference: ImageReference) -> str:
    text = re.sub(r"https?://[^\s\"]+", "", text)
    for name in (reference.normalized, reference.name, reference.familiar, reference.repository, reference.version):
        text = text.replace(name, "")
    return text
