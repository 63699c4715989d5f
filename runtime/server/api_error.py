"""Errors as the OpenAI API has them: a status, and {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse


class ApiError(Exception):
    """What a client is told. `message` is one line, and never has anything of the server's inside in it.

    outcome: what the request is counted as (metrics.py).
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        outcome: str = "invalid",
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.outcome, self.retry_after = outcome, retry_after

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, headers: dict[str, str] | None = None) -> JSONResponse:
        wait = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return JSONResponse(self.body(), self.status, {**(headers or {}), **wait})


def unsupported(param: str, message: str) -> ApiError:
    """A parameter of the API that this server can't follow: refused, since ignoring it would change the answer."""
    return ApiError(400, message, param=param, code="unsupported_parameter")


def failed() -> ApiError:
    return ApiError(500, "the model failed on this request: see the server's log", code="failed", outcome="failed")


def queue_full(waiting: int, seconds: int) -> ApiError:
    return ApiError(
        429, f"{waiting} requests wait already: try again later", code="queue_full", outcome="queue_full",
        retry_after=seconds,
    )  # fmt: skip


def queue_timeout(seconds: float) -> ApiError:
    return ApiError(
        503, f"no engine was free within {seconds:g} seconds: try again later", code="queue_timeout",
        outcome="queue_timeout", retry_after=5,
    )  # fmt: skip


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", code="shutting_down", outcome="shutting_down", retry_after=5)
