"""URLs as people write them into a configuration, read strictly: who is connected to must be who was checked. Pure.

Parsers differ in what they take as host of `http://127.0.0.1\\@x` or `http://127.1`. What could be read in two ways
is refused here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
"""As the last part of a host it means an IPv4 address, which some write with fewer parts, in octal or in hex."""


_BRACKETED = re.compile(r"\[[^\[\]]*\](:[0-9]*)?")


class UrlError(ValueError):
    """A URL that cannot be used. A sentence without the URL's own text, which may hold a password."""


@dataclass(frozen=True)
class Url:
    scheme: str
    host: str
    """In lower case, an IPv6 address without brackets."""
    port: int | None
    path: str
    query: str
    fragment: str
    has_user: bool


def read_url(text: str) -> Url:
    """Raises UrlError."""
    if not text.isprintable() or any(char in text for char in ' "<>\\^`{|}'):
        raise UrlError("is no URL that can be read")
    try:
        url = urlsplit(text)
        host, port = url.hostname or "", url.port
    except ValueError:
        raise UrlError("is no URL that can be read") from None
    if not host or "%" in host:
        raise UrlError("names no host")
    if "[" in url.netloc and not _BRACKETED.fullmatch(url.netloc.rpartition("@")[2]):
        raise UrlError("is no URL that can be read: brackets stand around an address, and nothing beside them")
    if not is_host(host, bracketed="[" in url.netloc):
        raise UrlError("is no URL that can be read: its host is neither a name nor an address as both are written")
    return Url(url.scheme, host, port, url.path, url.query, url.fragment, "@" in url.netloc)


def is_host(text: str, *, bracketed: bool = False) -> bool:
    """Whether it is the name or the address of a host, without a port; in one way only."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return not bracketed and _is_name(text)
    return bracketed == (address.version == 6)


def _is_name(text: str) -> bool:
    try:
        labels = text.encode("idna").decode().removesuffix(".").split(".")
    except UnicodeError:
        return False
    return all(_LABEL.fullmatch(label) for label in labels) and not _NUMBER.fullmatch(labels[-1])


_SDK_HOST = re.compile(r"[A-Za-z0-9.-]+")


def is_loopback(host: str) -> bool:
    """This machine, by an address or by the one name for it that no resolver is asked for."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def endpoint_problems(text: str, what_crosses: str) -> Iterator[str]:
    """What is wrong with an `endpointUrl`, of AWS's services or a stand-in; `what_crosses` the network to it."""
    try:
        url = read_url(text)
    except UrlError as e:
        yield f"{e}: it must be an https:// address, without user, query and fragment"
        return
    if url.scheme not in ("http", "https") or url.has_user or url.query or url.fragment:
        yield "must be an https:// address, without user, query and fragment"
    elif url.scheme == "http" and not is_loopback(url.host):
        yield f"must be https://: {what_crosses} would cross the network in the clear"
    elif url.port == 0:
        yield "has port 0, which nobody listens on"
    elif not (":" in url.host or _SDK_HOST.fullmatch(url.host)):
        yield "has a host that the AWS SDK does not take: letters, digits, - and . only"
