"""Whose lines a process writes, and whose it keeps to itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SPEAK = """
import logging, httpx
from hatchway.logs import configure_logging
configure_logging()
logging.getLogger("hatchway.worker").info("own-info")
logging.getLogger("hatchway.worker").debug("own-debug")
logging.getLogger("temporalio.activity").warning("sdk-warning")
logging.getLogger("a_stranger").warning("library-warning")
transport = httpx.MockTransport(lambda request: httpx.Response(200))
httpx.Client(transport=transport).get("https://receiver.example/ok?token=marker-of-the-url")
logging.getLogger("botocore.parsers").debug("Response body: marker-of-the-answer")
"""


def _written(level: str | None) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "HATCHWAY_LOG_LEVEL"}
    environ |= {"HATCHWAY_LOG_LEVEL": level} if level else {}
    done = subprocess.run([sys.executable, "-c", SPEAK], env=environ, capture_output=True, text=True, check=True)
    return done.stderr


@pytest.mark.parametrize(
    ("level", "own"), [(None, {"own-info"}), ("DEBUG", {"own-info", "own-debug"}), ("warning", set())]
)
def test_the_level_is_that_of_our_own_lines(level: str | None, own: set[str]) -> None:
    written = _written(level)

    assert {line for line in ("own-info", "own-debug") if line in written} == own
    assert "sdk-warning" in written
    assert "library-warning" in written


@pytest.mark.parametrize("level", [None, "DEBUG"])
def test_no_library_quotes_a_request_or_an_answer_at_any_level(level: str | None) -> None:
    assert "marker-of-the" not in _written(level)
