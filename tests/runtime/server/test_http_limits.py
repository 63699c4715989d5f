"""What may come over HTTP: so much, of one type, from whom may ask. Every refusal has the API's form."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from served_model import CONTEXT, VOCABULARY, Running, Teller, running, service_of, until

from qbpass.models.tokenizer import TextCodec
from qbpass.runtime.server.limits import Limits

KEY = "correct-horse"
BODY = {"model": "tiny", "prompt": "x", "max_tokens": 4}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LIMITS = Limits(body_bytes=2000, body_seconds=0.2, max_tokens=100)


@pytest.fixture(scope="module")
def server(codec: TextCodec) -> Iterator[Running]:
    with running(service_of(codec, Teller(), limits=LIMITS)) as it:
        yield it


@pytest.fixture(scope="module")
def guarded(codec: TextCodec) -> Iterator[Running]:
    with running(service_of(codec, Teller(), api_key=KEY), KEY) as it:
        yield it


def error_of(answer: httpx2.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    value = answer.json()
    assert set(value) == {"error"}
    assert set(value["error"]) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    error: dict[str, Any] = value["error"]
    return error


def post(server: Running, path: str = "/v1/completions", **named: Any) -> httpx2.Response:
    return httpx2.post(server.url + path, **named)


def raw(server: Running, data: bytes) -> bytes:
    """What comes back for bytes, until the server closes."""
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30) as connection:
        connection.sendall(data)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


def test_a_body_that_says_it_is_too_long_is_not_read(server: Running) -> None:
    assert error_of(post(server, json={**BODY, "prompt": "x" * 2000}), 413)["code"] == "body_too_large"
    assert b" 413 " in raw(server, HEAD + b"Content-Length: 9999999999999999999\r\n\r\n").splitlines()[0]


def test_a_body_that_does_not_say_how_long_it_is_is_read_no_further_than_it_may_be(server: Running) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 100

    named = {"content": endless(), "headers": {"Content-Type": "application/json"}}
    assert error_of(post(server, **named), 413)["code"] == "body_too_large"
    assert post(server, json=BODY).status_code == 200


def test_a_body_that_does_not_come_is_408(server: Running) -> None:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n"
    )
    assert raw(server, head + b"\r\n{").startswith(b"HTTP/1.1 408 ")


def test_no_more_bodies_are_read_at_a_time_than_may_be(codec: TextCodec) -> None:
    with running(service_of(codec, Teller(), limits=Limits(bodies=1))) as server:
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as slow:
            slow.sendall(HEAD + b"Content-Length: 50\r\n\r\n{")
            until(lambda: server.service.intake.bodies == 1)
            assert error_of(post(server, json=BODY), 429)["code"] == "queue_full"
        until(lambda: server.service.intake.bodies == 0)
        assert post(server, json=BODY).status_code == 200


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_body_of_a_type_that_pages_may_send_anywhere_is_415(server: Running, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    error_of(post(server, content=json.dumps(BODY), headers=headers), 415)


def test_a_connection_too_many_is_503(codec: TextCodec) -> None:
    with running(service_of(codec, Teller(), limits=Limits(connections=1))) as server:
        port = int(server.url.rpartition(":")[2])
        assert post(server, json=BODY).status_code == 200
        until(lambda: not server.server.server_state.connections)
        with socket.create_connection(("127.0.0.1", port), timeout=30):
            until(lambda: len(server.server.server_state.connections) == 1)
            assert post(server, json=BODY).status_code == 503
        until(lambda: not server.server.server_state.connections)
        assert post(server, json=BODY).status_code == 200


def test_a_bug_before_the_engine_is_500_without_a_trace(
    codec: TextCodec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running(service_of(codec, Teller())) as server:
        with monkeypatch.context() as patch:
            patch.setattr(TextCodec, "encode", lambda *arguments, **named: 1 / 0)
            for stream in (False, True):
                assert error_of(post(server, json={**BODY, "stream": stream}), 500)["code"] == "failed"
        assert post(server, json=BODY).status_code == 200
    assert "ZeroDivisionError" in caplog.text


def test_a_long_prompt_is_encoded_as_a_short_one_is(codec: TextCodec) -> None:
    with running(service_of(codec, Teller())) as server:
        body = {**BODY, "metadata": {"filler": "x" * 5000}}
        assert post(server, json=body).json()["choices"] == post(server, json=BODY).json()["choices"]


def test_a_bad_http_request_is_400(server: Running) -> None:
    assert raw(server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("path", "status"), [("/", 404), ("/v1/embeddings", 404), ("/docs", 404), ("/v1/completions", 405)]
)
def test_paths_and_methods_that_are_not_there(server: Running, path: str, status: int) -> None:
    error_of(httpx2.get(server.url + path), status)


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"prompt": "x" * CONTEXT}, "prompt", "context_length_exceeded"),
        ({"prompt": ""}, "prompt", None),
        ({"prompt": [VOCABULARY]}, "prompt", None),
        ({"max_tokens": 101}, "max_tokens", None),
    ],
)
def test_a_prompt_or_an_answer_that_is_too_long_is_400(
    server: Running, more: dict[str, Any], param: str, code: str | None
) -> None:
    error = error_of(post(server, json={**BODY, **more}), 400)
    assert (error["param"], error["code"]) == (param, code)


def test_an_answer_ends_where_the_context_does(server: Running) -> None:
    answer = post(server, json={**BODY, "prompt": "x" * (CONTEXT - 3), "max_tokens": 50}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["qbpass"]["stop_reason"] == "context_length"
    assert answer["usage"]["total_tokens"] == CONTEXT


def test_a_conversation_that_the_template_refuses_is_400(server: Running) -> None:
    messages = [{"role": "developer", "content": "x"}]
    error = error_of(post(server, "/v1/chat/completions", json={"messages": messages}), 400)
    assert "no developers" in error["message"]


def test_a_model_without_a_chat_template_has_no_conversations(plain_codec: TextCodec) -> None:
    with running(service_of(plain_codec, Teller())) as server:
        messages = [{"role": "user", "content": "x"}]
        error = error_of(post(server, "/v1/chat/completions", json={"messages": messages}), 400)
        assert "/v1/completions" in error["message"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": f"Bearer {KEY}x"}, 401),
        ({"Authorization": f"Bearer {KEY[:-1]}"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": b"Bearer \xff\xfe"}, 401),
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"Authorization": f"bearer {KEY}"}, 200),
    ],
)
def test_who_does_not_have_the_key_gets_nothing_but_health(guarded: Running, sent: Any, status: int) -> None:
    for path in ("/v1/models", "/metrics"):
        assert httpx2.get(guarded.url + path, headers=sent).status_code == status
    answer = post(guarded, json=BODY, headers=sent)
    assert answer.status_code == status
    if status == 401:
        assert error_of(answer, 401)["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/ready"):
        assert httpx2.get(guarded.url + path, headers=sent).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("192.168.0.1", 403),
        ("", 403),
    ],
)
def test_without_a_key_only_this_machines_own_names_are_answered(server: Running, host: str, status: int) -> None:
    answer = httpx2.get(f"{server.url}/v1/models", headers={"Host": host})
    assert answer.status_code == status


def test_no_answer_invites_pages_of_other_origins(server: Running) -> None:
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for answer in (
        httpx2.request("OPTIONS", f"{server.url}/v1/completions", headers=headers),
        post(server, json=BODY, headers=headers),
    ):
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    assert answer.headers["x-request-id"]
