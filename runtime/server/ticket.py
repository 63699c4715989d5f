"""A job seen from the event loop: its events in order, its place in the queue, and the client who may go away."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from starlette.types import Receive

from qbpass.models.errors import PromptError
from qbpass.runtime.engine import Request
from qbpass.runtime.sampling.errors import SamplingError
from qbpass.runtime.server.api_error import ApiError, failed, queue_timeout, shutting_down
from qbpass.runtime.server.choosing_of import seed_of
from qbpass.runtime.server.engine_pool import EnginePool
from qbpass.runtime.server.job import Dropped, Ended, Failed, Finished, Job, Tokens
from qbpass.runtime.server.limits import Limits

#: What is wrong with a request, where a model may fail, too.
_REQUESTS_FAULT = (PromptError, SamplingError)


class ClientGone(Exception):
    """Nobody reads the answer."""


class Ticket:
    """`async with` it: within, the job waits or runs; behind it, no engine works for it."""

    def __init__(self, pool: EnginePool, request: Request, limits: Limits, receive: Receive, *, streams: bool) -> None:
        self._pool, self._receive = pool, receive
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Tokens | Ended | None] = asyncio.Queue()
        self._gone = False
        self.job = Job(request, self._tell, streams=streams, seconds=limits.generation_seconds)
        self._limits = limits

    @property
    def seed(self) -> int | None:
        """The seed that gives the same answer again; None where nothing is drawn."""
        return seed_of(self.job.request.choosing)

    async def __aenter__(self) -> Ticket:
        """Raises ApiError where the queue is full or the server is shutting down."""
        self._pool.submit(self.job)
        self._timer = self._loop.call_later(self._limits.queue_seconds, self._waited_too_long)
        self._watch = self._loop.create_task(self._watch_client())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._watch.cancel()
        if not self._pool.withdraw(self.job):
            self.job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watch

    async def next(self) -> Tokens | Finished:
        """The job's next event; Finished is the last.

        Raises ApiError where there is no answer, ClientGone where nobody wants one.
        """
        event = await self._events.get()
        if self._gone or event is None:
            raise ClientGone
        if isinstance(event, Failed):
            raise _told(event.error)
        if isinstance(event, Dropped) or (isinstance(event, Finished) and self._is_cut(event)):
            raise shutting_down()  # of clients that are still there, only that cancels
        return event

    def _is_cut(self, done: Finished) -> bool:
        """Whether the job was cancelled before it ended by itself, or by the time it may take."""
        return self.job.cancelled and done.endpoint.stop_reason == "cancelled"

    def _tell(self, event: Tokens | Ended) -> None:
        """From the engine's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def _waited_too_long(self) -> None:
        if self._pool.withdraw(self.job):
            self._events.put_nowait(Failed(queue_timeout(self._limits.queue_seconds)))

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._events.put_nowait(None)  # behind what nobody will read: whoever waits looks up


def _told(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    return ApiError(400, str(error)) if isinstance(error, _REQUESTS_FAULT) else failed()
