"""What the gateway answers when it cannot answer 200: always `{error, message}`, never a word of what was sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from hatchway.errors import HatchwayError, StoreContended, StoreUnreachable

RETRY_AFTER_S = 2
"""A database failover or a Temporal restart takes seconds; agents spread their retries themselves."""

ENDS_AN_AGENT = {401, 403, 410}
"""An agent stops at these. 409 `adopted`, too, is an end, and said of a row that is there."""

log = structlog.get_logger(__name__)


class TemporalUnreachable(HatchwayError):
    """Temporal did not answer, or nobody there took the call up. Calling again settles it."""


class ApiError(HatchwayError):
    """An answer other than 200. `error` is for programs, `str()` for people."""

    def __init__(self, status: int, error: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.headers = dict(headers or {})


def unauthorized() -> ApiError:
    return ApiError(
        401,
        "unauthorized",
        "this token belongs to no agent that Hatchway still knows: the agent should stop",
        {"WWW-Authenticate": "Bearer"},
    )


def tearing_down(message: str = "this agent's provision is being torn down: the agent should stop") -> ApiError:
    return ApiError(410, "tearing_down", message)


def superseded() -> ApiError:
    """For heartbeat and complete, whose callers know 401 and 410 as the answers that mean stop."""
    return ApiError(410, "adopted", "another process has registered as this agent: this one should stop")


def not_registered() -> ApiError:
    return ApiError(409, "not_registered", "this agent has not registered yet: call /v1/agents/register first")


def unavailable(who: str) -> ApiError:
    return ApiError(
        503, "unavailable", f"{who} does not answer now; the call may be repeated", {"Retry-After": str(RETRY_AFTER_S)}
    )


def render(status: int, error: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": error, "message": message}, status, headers=dict(headers or {}))


def install(app: FastAPI, vouched: Callable[[ApiError], Awaitable[None]] | None = None) -> None:
    """Give every kind of refusal the one form. `vouched` raises another one in place of what would end an agent."""

    @app.exception_handler(ApiError)
    async def _api_error(_request: Request, e: ApiError) -> JSONResponse:
        if vouched is not None and (e.status in ENDS_AN_AGENT or e.error == "adopted"):
            try:
                await vouched(e)
            except ApiError as instead:
                e = instead
        return render(e.status, e.error, str(e), e.headers)

    @app.exception_handler(StoreUnreachable)
    @app.exception_handler(StoreContended)
    async def _store(request: Request, e: HatchwayError) -> JSONResponse:
        log.warning("gateway_postgres_unavailable", path=request.url.path, reason=str(e))
        return await _api_error(request, unavailable("Postgres"))

    @app.exception_handler(TemporalUnreachable)
    async def _temporal(request: Request, e: TemporalUnreachable) -> JSONResponse:
        log.warning("gateway_temporal_unavailable", path=request.url.path, reason=str(e))
        return await _api_error(request, unavailable("Temporal"))

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, e: RequestValidationError) -> JSONResponse:
        findings = e.errors()
        if any(finding["type"] == "json_invalid" for finding in findings):
            return render(400, "invalid_json", "the body is not valid JSON")
        return render(422, "invalid_request", "; ".join(_sentence(finding) for finding in findings))

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, e: HTTPException) -> JSONResponse:
        if e.status_code == 404:
            return render(404, "not_found", "there is nothing at this path")
        if e.status_code == 405:
            return render(405, "method_not_allowed", "this path does not take that method", e.headers)
        return render(e.status_code, "bad_request", "the request cannot be read", e.headers)


def _sentence(finding: Mapping[str, Any]) -> str:
    """The field and what it must be. Only fields of our own models can stand in `loc`: unknown ones are ignored."""
    field = ".".join(str(part) for part in finding["loc"] if part != "body") or "the body"
    reason = "is required" if finding["type"] == "missing" else str(finding["msg"]).removeprefix("Value error, ")
    return f"{field}: {reason}"
