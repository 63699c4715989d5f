"""Told to stop, a server refuses who waits, lets who runs end within the time of grace, and cancels the rest."""

from __future__ import annotations

import signal
import threading
from typing import Any

import openai
import pytest
from served_model import Teller, ask, later, running, service_of, until

from qbpass.models.tokenizer import TextCodec
from qbpass.runtime.server.limits import Limits

STORY = "once upon a time"


def test_who_runs_ends_and_who_waits_is_refused(codec: TextCodec) -> None:
    gate = threading.Semaphore(0)
    with running(service_of(codec, Teller(STORY, gate=gate))) as server:
        pool = server.service.pool
        runs = later(lambda: ask(server))
        until(lambda: pool.running == 1)
        waits = later(lambda: ask(server))
        until(lambda: pool.waiting == 1)
        server.stop()
        refused = waits.exception(30)
        assert isinstance(refused, openai.InternalServerError)
        assert (refused.status_code, refused.code) == (503, "shutting_down")
        assert not pool.ready
        gate.release(1000)
        assert runs.result(30).choices[0].text == STORY
    with pytest.raises(openai.APIConnectionError):
        ask(server)


@pytest.mark.parametrize("stream", [False, True])
def test_who_does_not_end_within_the_time_of_grace_is_told_so(codec: TextCodec, stream: bool) -> None:
    gate = threading.Semaphore(2)
    target = Teller(STORY, gate=gate)
    got: list[Any] = []

    def read() -> None:
        with server.client() as client:
            answer = client.completions.create(model="tiny", prompt="x", max_tokens=99, stream=stream)
            got.extend(answer if stream else [answer])

    with running(service_of(codec, target, limits=Limits(grace_seconds=0.02))) as server:
        runs = later(read)
        until(lambda: target.calls == 3)
        server.stop()
        job = next(iter(server.service.pool._running))
        until(lambda: job.cancelled)
        gate.release(1)
        error = runs.exception(30)
        assert isinstance(error, openai.APIError)
        assert "shutting down" in error.message
        assert "".join(chunk.choices[0].text for chunk in got) == ("once" if stream else "")[: len(got)]
        assert target.calls == 3


def test_a_second_signal_cancels_who_runs_at_once(codec: TextCodec) -> None:
    gate = threading.Semaphore(0)
    target = Teller(STORY, gate=gate)
    with running(service_of(codec, target)) as server:
        runs = later(lambda: ask(server))
        until(target.entered.is_set)
        job = next(iter(server.service.pool._running))
        server.server.handle_exit(signal.SIGTERM, None)
        until(lambda: not server.service.pool.ready)
        assert not job.cancelled
        server.server.handle_exit(signal.SIGTERM, None)
        until(lambda: job.cancelled)
        gate.release(1)
        assert isinstance(runs.exception(30), openai.InternalServerError)
        assert target.calls == 1
