"""One request on its way through an engine, between the thread that generates and whoever waits for the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qbpass.runtime.endpoint import Endpoint
from qbpass.runtime.engine import Request
from qbpass.runtime.trace import Trace


@dataclass(frozen=True)
class Tokens:
    """Committed tokens, as they came."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Finished:
    """What the engine returned: of a job that was cancelled or ran out of time, its beginning."""

    endpoint: Endpoint
    trace: Trace


@dataclass(frozen=True)
class Dropped:
    """Cancelled before an engine began with it."""


@dataclass(frozen=True)
class Failed:
    error: Exception


Ended = Finished | Dropped | Failed


class Job:
    """listener: told, from the engine's thread, of tokens (where `streams`) and of the end, which comes exactly once
    for a job that an engine took. seconds: how long it may run.

    Times are those of time.monotonic(); None until it is so.
    """

    def __init__(
        self, request: Request, listener: Callable[[Tokens | Ended], None], *, streams: bool, seconds: float
    ) -> None:
        self.request, self._listener, self._streams, self._seconds = request, listener, streams, seconds
        self._cancelled = False
        self.submitted = time.monotonic()
        self.started: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None

    def cancel(self) -> None:
        """From any thread: the engine stops before its next call."""
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    @property
    def timed_out(self) -> bool:
        return self.started is not None and time.monotonic() - self.started > self._seconds

    def should_stop(self) -> bool:
        """What the engine asks between calls."""
        return self.cancelled or self.timed_out

    def on_tokens(self, tokens: Sequence[int]) -> None:
        if self.first_token is None:
            self.first_token = time.monotonic()
        if self._streams and tokens:
            self._listener(Tokens(tuple(tokens)))

    def end(self, how: Ended) -> None:
        self._listener(how)
