"""JSON that others wrote: secrets, credential helpers, receivers, files that people hand over. Pure.

`json.loads` raises ValueError for what is no JSON, and RecursionError for what is nested deeper than the stack: a few
kilobytes of brackets would go past every `except ValueError`.
"""

from __future__ import annotations

import json
from typing import Any


class NestedTooDeeplyError(ValueError):
    """Nobody who means it writes such JSON."""


def parse_foreign(text: str | bytes) -> Any:
    """Raises ValueError, and nothing else; the parser's own errors hold the text, so do not chain or print them."""
    try:
        return json.loads(text)
    except RecursionError:
        raise NestedTooDeeplyError("it is nested too deeply") from None
