"""From a pull's event stream to one line for people: `pulling app:1, 3/7 layers, 41 %`."""

from __future__ import annotations

from typing import Any

from hatchway.backends.base import Progress

_HERE = frozenset({"Already exists", "Pull complete"})
_FETCHED = frozenset({"Download complete", "Verifying Checksum", "Extracting", *_HERE})
_LAYER = frozenset({"Pulling fs layer", "Waiting", "Downloading", *_FETCHED})


class PullProgress:
    """Adds up the layers of one pull. The share is of the bytes of those layers whose size the registry has told."""

    def __init__(self, image: str, progress: Progress) -> None:
        self._image = image
        self._progress = progress
        self._status: dict[str, str] = {}
        self._bytes: dict[str, tuple[int, int]] = {}
        self._said = ""

    def take(self, event: dict[str, Any]) -> None:
        """One decoded line of the stream. Says something only when the line for people changes."""
        layer, status = event.get("id"), event.get("status")
        if layer is None or status not in _LAYER:
            return
        self._status[layer] = status
        detail = event.get("progressDetail") or {}
        if status == "Downloading" and detail.get("total"):
            self._bytes[layer] = (int(detail.get("current") or 0), int(detail["total"]))
        elif status in _FETCHED and layer in self._bytes:
            total = self._bytes[layer][1]
            self._bytes[layer] = (total, total)
        line = self.line()
        if line != self._said:
            self._said = line
            self._progress(line)

    def line(self) -> str:
        """The pull in one line."""
        done = sum(status in _HERE for status in self._status.values())
        line = f"pulling {self._image}, {done}/{len(self._status)} layers"
        total = sum(total for _, total in self._bytes.values())
        if total:
            line += f", {100 * sum(current for current, _ in self._bytes.values()) // total} %"
        return line
