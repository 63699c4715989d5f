"""A request's body, read no further than it may be long, and no longer than it may take."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from qbpass.runtime.server.api_error import ApiError
from qbpass.runtime.server.limits import Limits
from qbpass.runtime.server.ticket import ClientGone


async def read_body(request: Request, limits: Limits) -> bytes:
    """Raises ApiError: 415 for what does not call itself JSON (a page in a browser may send other types to any
    server without asking it first), 413 for too much, 408 for too slow. ClientGone where it ends in between.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "send JSON: Content-Type: application/json", code="unsupported_media_type")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or len(declared) > 18 or int(declared) > limits.body_bytes:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await _read(request, limits)
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {limits.body_seconds:g} seconds") from None


async def _read(request: Request, limits: Limits) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limits.body_bytes:
            raise _too_large(limits)
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def _too_large(limits: Limits) -> ApiError:
    return ApiError(413, f"the body is longer than {limits.body_bytes} bytes", code="body_too_large")
