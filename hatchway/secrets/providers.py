"""Where secrets lie: files of a directory, and variables of the worker's environment.

A provider answers a value or raises NotServed with the reason; who asked, and for which field, its caller knows.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping

from hatchway.errors import HatchwayError

MAX_SECRET_BYTES = 64 * 1024
ENV_PREFIX = "HATCHWAY_SECRET_"

_ENV_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class NotServedError(HatchwayError):
    """The provider has no usable secret of this name. `str()` is the reason, as the end of a sentence."""


class UnavailableError(NotServedError):
    """The provider cannot say now: trying again may help."""


def read_file(directory: str, name: str) -> str:
    """The text of the file `name` below `directory`, without one trailing newline. Blocks.

    Links are followed as long as they stay inside (a mounted Kubernetes secret is a tree of links). Raises
    NotServedError for everything else that is not a regular file of at most 64 KiB of UTF-8 text.
    """
    if name.startswith("/") or "\0" in name or ".." in name.split("/"):
        raise NotServedError("has a name that leaves its directory")
    root = os.path.realpath(directory)
    path = os.path.realpath(os.path.join(root, name))
    if os.path.commonpath([root, path]) != root or path == root:
        raise NotServedError("has a name that leaves its directory")
    return _text(_read_regular(path))


def variable(name: str) -> str:
    """The environment variable that serves the secret `name`: always one that starts with HATCHWAY_SECRET_.

    The name is upper-cased, and its dots and dashes become underscores: `registry-token` is served by
    HATCHWAY_SECRET_REGISTRY_TOKEN. A name that is such a variable's is taken as it stands.
    """
    if not _ENV_NAME.fullmatch(name):
        raise NotServedError("has a name that is no variable's: letters, digits, underscores, dots and dashes only")
    if name.startswith(ENV_PREFIX) and name != ENV_PREFIX:
        return name
    return ENV_PREFIX + name.upper().replace(".", "_").replace("-", "_")


def read_variable(environ: Mapping[str, str], name: str) -> str:
    """The value of the variable that serves `name`. Raises NotServedError when it is unset, empty or too long."""
    key = variable(name)
    value = environ.get(key)
    if value is None:
        raise NotServedError(f"does not exist: the worker's environment has no {key}")
    if not value:
        raise NotServedError(f"is empty: see {key} in the worker's environment")
    if len(value.encode(errors="surrogateescape")) > MAX_SECRET_BYTES:
        raise NotServedError(f"is longer than {MAX_SECRET_BYTES // 1024} KiB")
    return value


def _read_regular(path: str) -> bytes:
    # O_NOFOLLOW: the path was resolved, so a link there now was put in between. O_NONBLOCK: a fifo must not hang us.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as e:
        raise NotServedError(_why_unreadable(e)) from None
    # Before Python wraps the descriptor: it refuses a directory with an error of its own, and leaves it open.
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotServedError("is not a regular file")
    with os.fdopen(fd, "rb") as file:
        data = file.read(MAX_SECRET_BYTES + 1)
    if len(data) > MAX_SECRET_BYTES:
        raise NotServedError(f"is larger than {MAX_SECRET_BYTES // 1024} KiB")
    return data


def _why_unreadable(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "does not exist: there is no such file"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "cannot be read: the worker's user may not open the file"
    if error.errno == errno.ELOOP:
        return "is not a regular file"
    return f"cannot be read: {os.strerror(error.errno or 0)}"


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise NotServedError("is not UTF-8 text") from None
    # One newline belongs to the editor that wrote the file; any more belong to the secret.
    text = text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")
    if not text:
        raise NotServedError("is empty")
    if "\0" in text:
        raise NotServedError("holds a NUL byte, which no environment or header can carry")
    return text
