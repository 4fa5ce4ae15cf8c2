"""How often is heard of agents, gateways and workers. Windows that judge silence must be longer than these."""

from __future__ import annotations

from datetime import timedelta

AGENT = timedelta(seconds=30)
"""Of an agent with a job; what a gateway asks for unless it is told otherwise."""
INSTANCE = timedelta(seconds=10)
"""Of a gateway or a worker."""
BEATS = 2
"""How many of them a window must span at least: one may be late or lost."""
