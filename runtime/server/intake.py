"""Bodies on their way in: so many at a time, none longer than it may be, none slower than it may be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request

from qbpass.runtime.server.api_error import ApiError, queue_full
from qbpass.runtime.server.limits import Limits
from qbpass.runtime.server.ticket import ClientGone

_SHORT_BYTES = 4096  # a millisecond's worth
T = TypeVar("T")


class Intake:
    """One server's. Long texts are understood in one thread, one after another: each takes many times its size of
    memory while it is encoded, and allocators keep that for every thread.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.bodies = 0  # being read or understood now
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="prompts")

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def read(self, request: Request, understood: Callable[[bytes], T]) -> T:
        """What `understood` makes of the body, which is not kept.

        Raises ApiError: 415 for what does not call itself JSON (a page in a browser may send other types to any
        server without asking it first), 413 for too long, 408 for too slow, 429 for one too many, and what
        `understood` raises. ClientGone where the body ends in between.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, "send JSON: Content-Type: application/json", code="unsupported_media_type")
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or len(declared) > 18 or int(declared) > self._limits.body_bytes:
            raise _too_large(self._limits)
        if self.bodies >= self._limits.bodies:
            raise queue_full(self.bodies, 1)
        self.bodies += 1
        try:
            data = await self._bytes(request)
            if len(data) <= _SHORT_BYTES and b"response_format" not in data:
                return understood(data)
            # Long prompts and grammars take their time: not that of the loop, which everybody waits for.
            return await asyncio.get_running_loop().run_in_executor(self._executor, understood, data)
        finally:
            self.bodies -= 1

    async def _bytes(self, request: Request) -> bytes:
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                return await _read(request, self._limits)
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {self._limits.body_seconds:g} seconds") from None


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
