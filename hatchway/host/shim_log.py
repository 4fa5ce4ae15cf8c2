"""What a bare-metal agent prints, on its way to the disk: redacted, and bounded. Standard library only (see `shim`)."""

import contextlib
import os
import re

MASK = b"[redacted]"


class Redactor:
    """Masks the given spellings in a stream, also where one is cut in two by a read."""

    def __init__(self, forms: list[bytes]) -> None:
        self.forms = sorted({form for form in forms if form}, key=len, reverse=True)
        self.pattern = re.compile(b"|".join(map(re.escape, self.forms))) if self.forms else None
        self.held = b""

    def feed(self, data: bytes) -> bytes:
        """The part of the stream that is certain by now; the rest is held back until more of it has come."""
        if self.pattern is None:
            return data
        data = self.held + data
        certain = self._undecided_from(data)
        out, position = [], 0
        for match in self.pattern.finditer(data):
            if match.start() >= certain:
                break
            out += [data[position : match.start()], MASK]
            position = match.end()
        certain = max(certain, position)
        self.held = data[certain:]
        return b"".join([*out, data[position:certain]])

    def flush(self) -> bytes:
        data, self.held = self.held, b""
        return self.pattern.sub(MASK, data) if self.pattern else data

    def _undecided_from(self, data: bytes) -> int:
        """Where the longest end of `data` begins that may still grow into a secret."""
        earliest = len(data)
        for form in self.forms:
            at = data.find(form[:1], max(0, len(data) - len(form) + 1))
            while -1 < at < earliest:
                if form.startswith(data[at:]):
                    earliest = at
                    break
                at = data.find(form[:1], at + 1)
        return earliest


class Log:
    """The agent's output: `log`, turned over once into `log.1` at half the cap, so that the end is always whole.

    A full disk, or a deleted directory, costs output and never the agent: it must not block on a pipe that nobody
    reads, and it dies with the process that keeps this log.
    """

    def __init__(self, directory: str, cap: int) -> None:
        self.path = os.path.join(directory, "log")
        self.half = cap // 2
        self.size = 0
        self.fd = self._open()

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)

    def write(self, data: bytes) -> None:
        while data:
            if self.size >= self.half:
                self._turn_over()
            room = self.half - self.size
            try:
                written = os.write(self.fd, data[:room])
            except OSError:
                return  # ENOSPC and its like: see above
            self.size += written
            data = data[written:]

    def make_room(self) -> None:
        """Give up the older half, or all where there is none: for what is worth more than output on a full disk."""
        try:
            os.unlink(self.path + ".1")
        except OSError:  # there is none, and nothing else to give up
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, 0)

    def _turn_over(self) -> None:
        self.size = 0
        try:
            os.rename(self.path, self.path + ".1")
            fresh = self._open()
        except OSError:
            # Somebody deleted it, or there is no room for another file: the one that is open begins anew.
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, 0)
            return
        os.close(self.fd)
        self.fd = fresh
