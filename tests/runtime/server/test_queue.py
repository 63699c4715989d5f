"""One request at a time per engine, a bounded queue, and nobody's engine works for a client that is gone."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import httpx2
import openai
import pytest
from served_model import ASKED, Broken, Running, Teller, ask, later, running, service_of, until

from qbpass.models.tokenizer import TextCodec
from qbpass.runtime.server.limits import Limits

STORY = "once upon a time"


def ask_in_pieces(server: Running) -> list[Any]:
    with server.client() as client:
        return list(client.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}))


def half_a_request(server: Running, **more: Any) -> socket.socket:
    """A connection that has sent a request and waits; close it to be gone."""
    connection = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30)
    body = json.dumps({**ASKED, **more}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def outcome(server: Running, name: str, endpoint: str = "completions") -> float:
    value = server.service.metrics.registry.get_sample_value(
        "qbpass_requests_total", {"endpoint": endpoint, "outcome": name}
    )
    return value or 0.0


def total(server: Running, name: str) -> float:
    value = server.service.metrics.registry.get_sample_value(name)
    assert value is not None
    return value


def test_a_full_queue_is_429_with_a_time_to_come_back_and_the_others_get_their_answers(codec: TextCodec) -> None:
    gate = threading.Semaphore(0)
    with running(service_of(codec, Teller(STORY, gate=gate), limits=Limits(queue=2))) as server:
        pool = server.service.pool
        asked = []
        for waiting in (0, 1, 2):
            asked.append(later(lambda: ask(server)))
            until(lambda waiting=waiting: (pool.running, pool.waiting) == (1, waiting))
        with pytest.raises(openai.RateLimitError) as refused:
            ask(server)
        assert refused.value.code == "queue_full"
        assert int(refused.value.response.headers["retry-after"]) >= 1
        gate.release(1000)
        assert [future.result(30).choices[0].text for future in asked] == [STORY] * 3
        until(lambda: (pool.running, pool.waiting) == (0, 0))
        until(lambda: (outcome(server, "stop"), outcome(server, "queue_full")) == (3, 1))


def test_a_queue_of_none_serves_as_many_as_there_are_engines(codec: TextCodec) -> None:
    gate = threading.Semaphore(0)
    targets = [Teller(STORY, gate=gate), Teller(STORY, gate=gate)]
    with running(service_of(codec, *targets, limits=Limits(queue=0))) as server:
        asked = [later(lambda: ask(server)) for _ in targets]
        until(lambda: all(target.entered.is_set() for target in targets))
        assert server.service.pool.running == 2
        with pytest.raises(openai.RateLimitError):
            ask(server)
        gate.release(1000)
        assert [future.result(30).choices[0].text for future in asked] == [STORY] * 2


def test_who_waited_too_long_is_503_and_leaves_the_queue(codec: TextCodec) -> None:
    gate = threading.Semaphore(0)
    with running(service_of(codec, Teller(STORY, gate=gate), limits=Limits(queue_seconds=0.05))) as server:
        first = later(lambda: ask(server))
        until(lambda: server.service.pool.running == 1)
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as refused:
                ask(server, stream=stream)
            assert (refused.value.status_code, refused.value.code) == (503, "queue_timeout")
        assert server.service.pool.waiting == 0
        gate.release(1000)
        assert first.result(30).choices[0].text == STORY


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_stops_when_its_client_is_gone_and_serves_the_next(codec: TextCodec, stream: bool) -> None:
    gate = threading.Semaphore(0)
    target = Teller("once upon a time " * 20, gate=gate)
    with running(service_of(codec, target)) as server:
        connection = half_a_request(server, stream=stream)
        until(target.entered.is_set)
        gate.release(2)
        until(lambda: target.calls == 3)
        connection.close()
        until(lambda: outcome(server, "cancelled") == 1)
        assert server.service.pool.running == 1  # within a call
        gate.release(1)
        until(lambda: server.service.pool.running == 0)
        assert target.calls == 3
        assert total(server, "qbpass_generated_tokens_total") >= 3
        gate.release(1000)
        assert ask(server).choices[0].text.startswith(STORY)


def test_a_client_that_goes_while_it_waits_is_taken_out_of_the_queue(codec: TextCodec) -> None:
    gate = threading.Semaphore(0)
    target = Teller(STORY, gate=gate)
    with running(service_of(codec, target)) as server:
        pool = server.service.pool
        first = later(lambda: ask(server))
        until(lambda: pool.running == 1)
        connection = half_a_request(server)
        until(lambda: pool.waiting == 1)
        connection.close()
        until(lambda: pool.waiting == 0)
        gate.release(1000)
        assert first.result(30).choices[0].text == STORY
        assert total(server, "qbpass_queue_seconds_count") == 1  # no engine took the second


def test_a_client_that_closes_its_stream_stops_the_engine(codec: TextCodec) -> None:
    gate = threading.Semaphore(1)
    target = Teller("once upon a time " * 20, gate=gate)
    with running(service_of(codec, target)) as server, server.client() as client:
        stream = client.completions.create(**ASKED, stream=True)
        assert next(stream).choices[0].text == "o"
        stream.close()
        until(lambda: outcome(server, "cancelled") == 1)
        calls = target.calls
        gate.release(1000)
        until(lambda: server.service.pool.running == 0)
        assert target.calls <= calls + 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_ends_where_it_is_and_says_so(codec: TextCodec, stream: bool) -> None:
    gate = threading.Semaphore(0)
    target = Teller(STORY, gate=gate)
    with running(service_of(codec, target, limits=Limits(generation_seconds=0.05))) as server:
        asked = later(lambda: ask_in_pieces(server) if stream else [ask(server)])
        until(target.entered.is_set)
        time.sleep(0.1)
        gate.release(1)
        chunks = asked.result(30)
        assert STORY.startswith("".join(chunk.choices[0].text for chunk in chunks if chunk.choices))
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
        assert chunks[-1].usage.model_extra["qbpass"]["stop_reason"] == "time_limit"


def test_a_request_that_fails_is_500_without_the_reason_and_leaves_nothing_behind(
    codec: TextCodec, caplog: pytest.LogCaptureFixture
) -> None:
    with running(service_of(codec, Broken(story=STORY))) as server, server.client() as client:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError) as failed:
                client.completions.create(model="tiny", prompt="secret!", max_tokens=9)
            assert (failed.value.status_code, failed.value.code) == (500, "failed")
            assert "NaN" not in failed.value.message
            assert client.completions.create(**ASKED).choices[0].text == STORY
        until(lambda: outcome(server, "failed") == 2)
    assert "NaN" in caplog.text
    assert "secret" not in caplog.text


def test_a_stream_that_fails_ends_with_an_error_that_the_client_raises(codec: TextCodec) -> None:
    with running(service_of(codec, Broken(at_call=3, story=STORY))) as server, server.client() as client:
        chunks = client.completions.create(model="tiny", prompt="!", max_tokens=99, stream=True)
        got: list[str] = []
        with pytest.raises(openai.APIError, match="the model failed"):
            got.extend(chunk.choices[0].text for chunk in chunks)
        assert STORY.startswith("".join(got))
        assert len(got) == 3
        assert client.completions.create(**ASKED).choices[0].text == STORY


def test_a_bug_in_an_engine_is_that_requests_end_alone(codec: TextCodec, caplog: pytest.LogCaptureFixture) -> None:
    target = Teller(STORY)
    with running(service_of(codec, target)) as server:
        rows, target._rows = target._rows, lambda tokens: 1 / 0  # type: ignore[assignment,return-value]
        with pytest.raises(openai.InternalServerError):
            ask(server)
        target._rows = rows  # type: ignore[method-assign]
        assert ask(server).choices[0].text == STORY
        assert server.service.pool.ready
    assert "ZeroDivisionError" in caplog.text


def test_what_is_counted_adds_up_and_holds_no_text(codec: TextCodec) -> None:
    with running(service_of(codec, Teller(STORY))) as server:
        answers = [ask(server), ask(server, stop="time")]
        with pytest.raises(openai.BadRequestError):
            ask(server, n=2)
        text = httpx2.get(f"{server.url}/metrics").text
    usages = [answer.usage for answer in answers]
    own = [usage.model_extra["qbpass"] for usage in usages]
    wanted = {
        "qbpass_prompt_tokens_total": sum(usage.prompt_tokens for usage in usages),
        "qbpass_generated_tokens_total": sum(usage.completion_tokens for usage in usages),
        "qbpass_proposed_tokens_total": sum(entry["proposed_tokens"] for entry in own),
        "qbpass_accepted_tokens_total": sum(entry["accepted_tokens"] for entry in own),
        "qbpass_rounds_total": sum(entry["rounds"] for entry in own),
        'qbpass_requests_total{endpoint="completions",outcome="stop"}': 2,
        'qbpass_requests_total{endpoint="completions",outcome="invalid"}': 1,
        "qbpass_time_to_first_token_seconds_count": 2,
        "qbpass_generation_seconds_count": 2,
        "qbpass_request_seconds_count": 3,
        "qbpass_queue_depth": 0,
        "qbpass_running_requests": 0,
        "qbpass_engines": 1,
    }
    shown = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert {name: float(shown[name]) for name in wanted} == wanted
    assert "once" not in text
