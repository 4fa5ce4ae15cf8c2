"""Image references: what `nginx` really names, and under which key its credentials are filed.

The grammar is that of distribution/reference (https://github.com/distribution/reference): the first segment is a host
when it holds a `.` or a `:`, is `localhost`, or has an upper-case letter; a name without a host is Docker Hub's.
Stricter in four places, where that grammar takes what no registry can serve: a port above 65535, an IPv6 address that
is none, a digest algorithm that nobody computes, and an engine's image id (`sha256:` and 64 digits) in a name's place.

Pure: it is imported by workflow code. No error quotes the reference, because people write passwords into them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hatchway.errors import InvalidReference

DOCKER_HUB = "docker.io"
DOCKER_HUB_AUTH_KEY = "https://index.docker.io/v1/"
"""Docker Hub's key in every docker config since v1 of its protocol; no other registry's key is a URL."""

_DOCKER_HUB_ALIASES = frozenset({DOCKER_HUB, "index.docker.io", "registry-1.docker.io"})
_LIBRARY = "library/"
_MAX_REPOSITORY = 255  # distribution/reference: RepositoryNameTotalLengthMax

_HEX64 = re.compile(r"[a-f0-9]{64}")
_IMAGE_ID = re.compile(r"sha256:[a-f0-9]{64}")
_HOST_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?")
_PATH_PART = re.compile(r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PORT = re.compile(r"[0-9]{1,5}")
_IPV6 = re.compile(r"[A-Fa-f0-9:]+")
_DIGEST = re.compile(r"(?P<algorithm>[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*):(?P<hex>[0-9A-Fa-f]+)")
_DIGEST_LENGTHS: Mapping[str, int] = {"sha256": 64, "sha384": 96, "sha512": 128}


@dataclass(frozen=True)
class ImageReference:
    """One image, by its full name.

    `registry` is the host as written (Docker Hub's three names become `docker.io`), with its port. `tag` is `latest`
    only where the text gave neither tag nor digest; where both are given, the digest decides what is pulled.
    """

    registry: str
    repository: str
    tag: str | None
    digest: str | None

    @property
    def name(self) -> str:
        """Registry and repository, without tag and digest."""
        return f"{self.registry}/{self.repository}"

    @property
    def version(self) -> str:
        """What the registry is asked for: the digest where there is one, else the tag."""
        return self.digest or self.tag or "latest"

    @property
    def normalized(self) -> str:
        """The one spelling of this image. The digest alone identifies it, so a tag beside a digest is left out."""
        return f"{self.name}{self._suffix}"

    @property
    def familiar(self) -> str:
        """The shortest spelling that means the same image, for people."""
        if self.registry != DOCKER_HUB:
            return self.normalized
        short = self.repository.removeprefix(_LIBRARY)
        ambiguous = "/" in short or _HEX64.fullmatch(short)
        return f"{self.repository if ambiguous else short}{self._suffix}"

    @property
    def auth_key(self) -> str:
        """The key of this registry's credentials in a docker config."""
        return DOCKER_HUB_AUTH_KEY if self.registry == DOCKER_HUB else self.registry

    @property
    def _suffix(self) -> str:
        return f"@{self.digest}" if self.digest else f":{self.tag}"


def parse_reference(text: str) -> ImageReference:
    """The image that `text` names. Raises InvalidReference, which says why and never quotes the text."""
    _refuse_the_usual_mistakes(text)
    named, at, digest = text.partition("@")
    if at:
        _check_digest(digest)
    registry, path = _split_registry(named)
    repository, colon, tag = _split_tag(path)
    if colon:
        _check_tag(tag)
    _check_repository(repository)
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"{_LIBRARY}{repository}"
    if len(repository) > _MAX_REPOSITORY:
        raise InvalidReference(f"the repository name is longer than {_MAX_REPOSITORY} characters")
    return ImageReference(
        registry=registry,
        repository=repository,
        tag=tag if colon else None if at else "latest",
        digest=digest if at else None,
    )


def parse_registry_host(text: str) -> str:
    """The registry that `text` names, as `ImageReference.registry` spells it: `index.docker.io` is `docker.io`.

    Takes Docker Hub's key URL too, because that is what a docker config calls it. Raises InvalidReference.
    """
    if text == DOCKER_HUB_AUTH_KEY:
        return DOCKER_HUB
    if "://" in text:
        raise InvalidReference("a registry is a host with an optional port; leave out the scheme (https://)")
    if "@" in text:
        raise InvalidReference("a registry is a host with an optional port; a user or password does not belong into it")
    if "/" in text:
        raise InvalidReference("a registry is a host with an optional port; leave out the path")
    _check_host(text)
    return _canonical(text)


def same_registry(one: str, other: str) -> bool:
    """Whether two registries as spelled by this module are one host. Host names know no case (RFC 4343)."""
    return one.lower() == other.lower()


def _refuse_the_usual_mistakes(text: str) -> None:
    if not text:
        raise InvalidReference("the image reference is empty")
    if any(c.isspace() or not c.isprintable() for c in text):
        raise InvalidReference("an image reference holds no white space and no control characters")
    if not text.isascii():
        raise InvalidReference("an image reference holds ASCII characters only")
    if "@" in text and "/" in text.partition("@")[2]:
        raise InvalidReference(
            "it looks like credentials before an @; a user name and password do not belong into an image reference: "
            "use auth.usernameSecret and auth.tokenSecret, and rotate what was written here"
        )
    if "://" in text:
        raise InvalidReference("an image reference has no scheme; leave out the part up to and including ://")
    if _HEX64.fullmatch(text) or _IMAGE_ID.fullmatch(text):
        raise InvalidReference(
            "64 hexadecimal digits are an image id, which only one engine knows; name the repository, as in "
            "registry/repository@sha256:<digest>"
        )


def _split_registry(named: str) -> tuple[str, str]:
    first, slash, rest = named.partition("/")
    looks_like_host = "." in first or ":" in first or "[" in first or first == "localhost" or first != first.lower()
    if first.startswith("[") and not slash:
        raise InvalidReference("the repository name after the registry is missing")
    if slash and looks_like_host:
        _check_host(first)
        return _canonical(first), rest
    return DOCKER_HUB, named


def _canonical(host: str) -> str:
    return DOCKER_HUB if host.lower() in _DOCKER_HUB_ALIASES else host


def _split_tag(path: str) -> tuple[str, str, str]:
    slash = path.rfind("/")
    name, colon, tag = path[slash + 1 :].partition(":")
    return path[: slash + 1] + name, colon, tag


def _check_host(host: str) -> None:
    if host.startswith("["):
        address, bracket, rest = host[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise InvalidReference("an IPv6 registry is written in brackets, as in [::1]:5000")
        _check_ipv6(address)
        port = rest[1:] if rest else None
    else:
        name, colon, after = host.partition(":")
        port = after if colon else None
        if port is not None and ":" in port:
            raise InvalidReference("the registry host has more than one colon; an IPv6 address needs brackets")
        if not name:
            raise InvalidReference("the registry host is empty")
        if not all(_HOST_PART.fullmatch(part) for part in name.split(".")):
            raise InvalidReference("the registry is not a host name: letters, digits, dots, and dashes inside only")
    if port is not None and not (_PORT.fullmatch(port) and 1 <= int(port) <= 65535):
        raise InvalidReference("the registry's port, after the colon, is not a number from 1 to 65535")


def _check_ipv6(address: str) -> None:
    try:
        # The grammar takes hexadecimal groups only: no zone, no embedded IPv4 address.
        if not _IPV6.fullmatch(address):
            raise ValueError
        ipaddress.IPv6Address(address)
    except ValueError:
        raise InvalidReference("what stands in brackets is not an IPv6 address") from None


def _check_repository(repository: str) -> None:
    parts = repository.split("/")
    if repository == "":
        raise InvalidReference("the repository name is missing")
    if "" in parts:
        raise InvalidReference("the repository name has an empty part: a slash at its start or end, or two in a row")
    if repository != repository.lower():
        raise InvalidReference("the repository name must be lower case")
    if not all(_PATH_PART.fullmatch(part) for part in parts):
        raise InvalidReference(
            "each part of the repository name consists of lower-case letters and digits, separated by one dot, "
            "one or two underscores, or dashes"
        )


def _check_tag(tag: str) -> None:
    if not tag:
        raise InvalidReference("the tag after the colon is empty")
    if not _TAG.fullmatch(tag):
        raise InvalidReference(
            "a tag has up to 128 letters, digits, underscores, dots and dashes, and starts with none of the last two"
        )


def _check_digest(digest: str) -> None:
    match = _DIGEST.fullmatch(digest)
    if not match:
        raise InvalidReference(
            "what follows the @ is not a digest (sha256: and 64 hexadecimal digits); a user name and password do not "
            "belong into an image reference"
        )
    length = _DIGEST_LENGTHS.get(match["algorithm"])
    if length is None:
        raise InvalidReference("the digest's algorithm is not one of sha256, sha384, sha512")
    if len(match["hex"]) != length or match["hex"] != match["hex"].lower():
        raise InvalidReference(f"a {match['algorithm']} digest has {length} lower-case hexadecimal digits")
