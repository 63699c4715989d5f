"""Bodies from strangers: what is not exactly a request is refused, with the field's name and without its value."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qbpass.runtime.server.api_error import ApiError
from qbpass.runtime.server.bodies import ChatBody, CompletionBody

SECRET = "a secret that must not come back"
USER = [{"role": "user", "content": "x"}]


def refusal(kind: type[CompletionBody] | type[ChatBody], data: bytes | dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as raised:
        kind.parse(data if isinstance(data, bytes) else json.dumps(data).encode())
    assert raised.value.status == 400
    assert "\n" not in raised.value.message
    assert len(raised.value.message) < 300
    assert SECRET not in raised.value.message
    return raised.value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"prompt": "x"',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a\x01b"}',
        b'{"prompt": "x", "temperature": ' + b"9" * 100_000 + b"}",
        b'{"prompt": "x", "metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "x", "metadata": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
        b"[]",
        b"null",
        b'"text"',
        b"1e999",
        b"PK\x03\x04",
    ],
    ids=lambda data: repr(data[:40]),
)
def test_what_is_no_json_object_is_called_so(data: bytes) -> None:
    assert refusal(CompletionBody, data).code == "invalid_json"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 2**40),
        ("max_tokens", 1.0),
        ("max_tokens", True),
        ("max_tokens", SECRET),
        ("temperature", -1),
        ("temperature", 3),
        ("temperature", "1"),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -3),
        ("seed", 2**70),
        ("seed", 1.5),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", [""]),
        ("stop", ""),
        ("stop", "x" * 201),
        ("stop", [1]),
        ("stop_token_ids", [-1]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {SECRET: 1}),
        ("logit_bias", {str(token): 0 for token in range(1025)}),
        ("logit_bias", [1]),
        ("response_format", {"type": "yaml"}),
        ("response_format", "json"),
        ("stream", "yes"),
        ("stream_options", {"include_usage": 1}),
        ("model", "m" * 201),
    ],
)
def test_a_value_that_the_field_can_not_have_names_the_field(field: str, value: Any) -> None:
    for kind, rest in ((CompletionBody, {"prompt": "x"}), (ChatBody, {"messages": USER})):
        error = refusal(kind, {**rest, field: value})
        assert error.param is not None
        assert error.param.split(".")[0] == field


@pytest.mark.parametrize(
    "prompt", [None, 1, [], [[]], [SECRET, "b"], [[1], [2]], [1, SECRET], [1.5], [-1], [2**31], {"a": 1}, [None]]
)
def test_a_prompt_is_one_text_or_one_list_of_token_ids(prompt: Any) -> None:
    assert (refusal(CompletionBody, {"prompt": prompt}).param or "").startswith("prompt")


@pytest.mark.parametrize(
    ("prompt", "read"), [("x", "x"), (["x"], "x"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2]), ("\0", "\0")]
)
def test_every_form_of_one_prompt_is_read(prompt: Any, read: Any) -> None:
    assert CompletionBody.parse(json.dumps({"prompt": prompt}).encode()).text_or_ids == read


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user"}],
        [{"role": "tool", "content": "x"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": SECRET}}]}],
        [{"role": "user", "content": "x", "tool_calls": []}],
        [SECRET],
        USER * 1025,
    ],
)
def test_messages_are_texts_by_known_roles(messages: Any) -> None:
    assert (refusal(ChatBody, {"messages": messages}).param or "").startswith("messages")


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (CompletionBody, "n", 2),
        (CompletionBody, "best_of", 2),
        (CompletionBody, "echo", True),
        (CompletionBody, "logprobs", 0),
        (CompletionBody, "logprobs", 5),
        (CompletionBody, "suffix", SECRET),
        (ChatBody, "n", 3),
        (ChatBody, "logprobs", True),
        (ChatBody, "top_logprobs", 2),
        (ChatBody, "tools", [{"type": "function"}]),
        (ChatBody, "tool_choice", "required"),
        (ChatBody, "functions", [{"name": "f"}]),
        (ChatBody, "audio", {}),
        (ChatBody, "reasoning_effort", "low"),
    ],
)
def test_what_the_server_does_not_do_is_refused_by_name(
    kind: type[CompletionBody] | type[ChatBody], field: str, value: Any
) -> None:
    error = refusal(kind, {"prompt": "x", "messages": USER, field: value})
    assert (error.code, error.param) == ("unsupported_parameter", field)


def test_an_unknown_field_is_refused_since_ignoring_it_may_change_the_answer() -> None:
    error = refusal(CompletionBody, {"prompt": "x", "temprature": 1})
    assert (error.code, error.param) == ("unknown_parameter", "temprature")


def test_values_that_say_nothing_and_fields_that_change_no_answer_are_taken() -> None:
    said = {"n": 1, "logprobs": None, "user": "u", "metadata": {"a": "b"}, "store": False, "seed": -1, "stop": []}
    assert CompletionBody.parse(json.dumps({"prompt": "x", "best_of": 1, "echo": False, **said}).encode()).seed == -1
    chat = {"messages": USER, "tools": [], "tool_choice": "none", "logprobs": False, "parallel_tool_calls": True}
    body = ChatBody.parse(json.dumps({**chat, "max_tokens": 3, "max_completion_tokens": 5}).encode())
    assert body.most_tokens == 5


def parsed_or_refused(kind: type[CompletionBody] | type[ChatBody], data: bytes) -> None:
    """Any exception but ApiError is a failure."""
    with contextlib.suppress(ApiError):
        assert kind.parse(data).stop_strings is not None


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_parse_or_be_refused(data: bytes) -> None:
    for kind in (CompletionBody, ChatBody):
        parsed_or_refused(kind, data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(sorted({*CompletionBody.model_fields, *ChatBody.model_fields, "n", "tools", "user"}))


@settings(deadline=None)
@given(st.dictionaries(FIELDS, JSON, max_size=4))
def test_no_value_of_a_field_does_anything_but_parse_or_be_refused(fields: dict[str, Any]) -> None:
    data = json.dumps({"prompt": "x", **fields}).encode()
    for kind in (CompletionBody, ChatBody):
        parsed_or_refused(kind, data)
