"""Structured logging for every long-running process: one JSON object a line, or columns on a terminal."""

from __future__ import annotations

import logging
import os
import sys

import structlog

OWN = ("hatchway", "activities", "workflows", "worker", "__main__", "temporalio", "uvicorn", "alembic")
"""Whose lines are read before they are written. Libraries that speak to others may quote whole requests and answers."""


def configure_logging(level: str | None = None) -> None:
    """Send structlog and the standard library's loggers (the Temporal SDK's among them) through one formatter.

    `level` is that of our own lines, and defaults to HATCHWAY_LOG_LEVEL, else INFO. Every other library only warns,
    whatever the level: at INFO an HTTP client names the URL of each request, token and all, and at DEBUG the AWS client
    prints the secrets that it was answered.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(["agent_id", "scaler", "job_id"]),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in OWN:
        logging.getLogger(name).setLevel((level or os.environ.get("HATCHWAY_LOG_LEVEL", "INFO")).upper())
