"""Engines at work, each in a thread of its own, one request at a time; the others wait in one bounded queue."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from qbpass.models.errors import QbpassError
from qbpass.runtime.engine import Engine
from qbpass.runtime.server.api_error import queue_full, shutting_down
from qbpass.runtime.server.job import Dropped, Ended, Failed, Finished, Job

_LOG = logging.getLogger("qbpass.server")


class EnginePool:
    """submit, withdraw and close may be called from any thread.

    A request that fails leaves nothing behind: an engine's next request starts from an empty cache.
    """

    def __init__(
        self, engines: Sequence[Engine], most_waiting: int, on_end: Callable[[Job, Ended], None] = lambda job, how: None
    ) -> None:
        """on_end: told of every job an engine took, from the engine's thread, before whoever waits for it."""
        self.engines = tuple(engines)
        self._most_waiting, self._on_end = most_waiting, on_end
        self._waiting: deque[Job] = deque()
        self._running: set[Job] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(engine,), name=f"engine-{index}", daemon=True)
            for index, engine in enumerate(self.engines)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def ready(self) -> bool:
        return not self._closed and all(thread.is_alive() for thread in self._threads)

    def submit(self, job: Job) -> None:
        """Raises ApiError: 429 where the queue is full, 503 where the pool is closed."""
        with self._changed:
            if self._closed:
                raise shutting_down()
            # Idle engines take their jobs from the queue, too: those are no waiting ones.
            if len(self._waiting) >= self._most_waiting + len(self.engines) - len(self._running):
                raise queue_full(self._most_waiting, 1 + len(self._waiting) // len(self.engines))
            self._waiting.append(job)
            self._changed.notify()

    def withdraw(self, job: Job) -> bool:
        """Takes a job out of the queue. False where an engine has it or had it: then cancel it."""
        with self._changed:
            if job not in self._waiting:
                return False
            self._waiting.remove(job)
            return True

    def close(self) -> list[Job]:
        """No more jobs. Returns those that waited: no engine will take them. Those under way go on."""
        with self._changed:
            self._closed = True
            left = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        return left

    def cancel_running(self) -> None:
        with self._changed:
            for job in self._running:
                job.cancel()

    def join(self) -> None:
        """Returns when every engine has ended its last call. Call `close` before."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _work(self, engine: Engine) -> None:
        while (job := self._next()) is not None:
            job.started = time.monotonic()
            how = _run(engine, job)
            job.ended = time.monotonic()
            with self._changed:
                self._running.discard(job)
            try:
                self._on_end(job, how)
            except Exception:  # a bug, and no reason to leave a client without its answer
                _LOG.exception("a request was not counted")
            job.end(how)

    def _next(self) -> Job | None:
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
            job = self._waiting.popleft()
            self._running.add(job)
            return job


def _run(engine: Engine, job: Job) -> Ended:
    if job.cancelled:
        return Dropped()
    try:
        return Finished(*engine.generate(job.request, job.on_tokens, job.should_stop))
    except QbpassError as error:
        _LOG.warning("a request failed: %s", error)
        return Failed(error)
    except Exception as error:  # a bug: this request's end, not the server's
        _LOG.exception("a request failed")
        return Failed(error)
