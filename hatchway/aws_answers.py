"""Answers of AWS's endpoints, read with an end: so many bytes, within so many seconds, whatever comes.

The SDK has a time limit for each piece that arrives, and none for the whole, and keeps whatever is sent. An endpoint
that is not AWS's own, but a proxy or a wrong `endpointUrl`, could hold its threads or fill its memory for ever.
"""

from __future__ import annotations

import functools
import http.client
import io
import socket
import time
from typing import Any

import botocore
from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

from hatchway.errors import HatchwayError

MIB = 1024 * 1024


class AnswerTooLong(HatchwayError):
    """An answer was not read to its end."""


def bound(client: Any, *, most: int, within_s: float) -> None:
    """Have a new client of the SDK read at most so many bytes of an answer, headers included, for so many seconds.

    The SDK has no setting for that. Raises HatchwayError where its connections are not what they are known to be: then
    it is another release than those that Hatchway was tried with.
    """
    try:
        pools = client._endpoint.http_session._pool_classes_by_scheme
    except AttributeError:
        raise HatchwayError(
            f"botocore {botocore.__version__} cannot be kept from reading answers without an end: install the release "
            "that constraints.txt names"
        ) from None
    answer = functools.partial(_Answer, most=most, within_s=within_s)
    plain = type("BoundConnection", (AWSHTTPConnection,), {"response_class": answer})
    tls = type("BoundTlsConnection", (AWSHTTPSConnection,), {"response_class": answer})
    # The dictionary itself is what its pools are made from, those that go through a proxy too.
    pools["http"] = type("BoundPool", (AWSHTTPConnectionPool,), {"ConnectionCls": plain})
    pools["https"] = type("BoundTlsPool", (AWSHTTPSConnectionPool,), {"ConnectionCls": tls})


def why_no_answer(error: Any) -> str:
    """What the SDK's error of a connection says, in a word or two: its text quotes what it was given."""
    cause = error.kwargs.get("error")
    return str(cause) if isinstance(cause, AnswerTooLong) else type(error).__name__


class _Answer(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, most: int, within_s: float, **keys: Any) -> None:
        super().__init__(_Connection(sock, most, within_s), *arguments, **keys)  # type: ignore[arg-type]


class _Connection:
    """All that a response asks of its socket."""

    def __init__(self, sock: socket.socket, most: int, within_s: float) -> None:
        self._sock = sock
        self._most = most
        self._within_s = within_s

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Bounded(self._sock, self._most, self._within_s))


class _Bounded(io.RawIOBase):
    def __init__(self, sock: socket.socket, most: int, within_s: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open for as long as the response is
        self._most = most
        self._left = most
        self._ends_at = time.monotonic() + within_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        # The SDK sets it anew for its next request.
        self._sock.settimeout(min(self._sock.gettimeout() or left_s, left_s))
        read = self._raw.readinto(buffer)
        self._left -= read or 0
        if self._left < 0:
            raise AnswerTooLong(f"it sent more than {self._most / MIB:g} MiB")
        return read

    def close(self) -> None:
        self._raw.close()
        super().close()
