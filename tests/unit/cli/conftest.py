"""Running commands inside this process, as `hatchway.cli.main` does, and seeing all that a shell would see."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from hatchway.cli.app import run


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def object(self) -> dict[str, Any]:
        """The one object that `--json` promises on stdout."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def error(self) -> dict[str, str]:
        """The one object that `--json` promises on stderr."""
        found: dict[str, str] = json.loads(self.err)
        assert set(found) == {"error", "message"}
        return found


Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`command("image", "parse", "nginx", stdin=b"…")`, without any server in the environment."""
    for name in ("DATABASE_URL", "TEMPORAL_ADDRESS", "HATCHWAY_DEBUG", "HATCHWAY_UI_URL"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, stdin: bytes = b"") -> Said:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = run(arguments)
        printed = capsys.readouterr()
        return Said(int(code), printed.out, printed.err)

    return call
