"""The official openai client works against a server as it is, and gets what the engine gives."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from served_model import END, Running, Teller, running, service_of

from qbpass.models.tokenizer import TextCodec
from qbpass.runtime.drafting.ngram import NgramDrafter
from qbpass.runtime.engine import Engine, Request

STORY = "ein Männlein steht im Walde, ein Männlein steht im Walde 🦆"


@pytest.fixture(scope="module")
def server(codec: TextCodec) -> Iterator[Running]:
    with running(service_of(codec, Teller(STORY))) as it:
        yield it


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with server.client() as made:
        yield made


def test_a_completion_is_the_engines(client: openai.OpenAI, codec: TextCodec) -> None:
    answer = client.completions.create(model="tiny", prompt="hello", max_tokens=200)
    request = Request(tuple(codec.encode("hello")), 200, frozenset({END}))
    endpoint, trace = Engine(Teller(STORY), NgramDrafter()).generate(request)
    assert answer.choices[0].text == codec.decode(endpoint.token_ids) == STORY
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, endpoint.length)
    assert answer.usage.model_extra is not None
    assert answer.usage.model_extra["qbpass"] == {
        "rounds": trace.rounds,
        "proposed_tokens": trace.proposed,
        "accepted_tokens": trace.accepted,
        "stop_reason": "end_of_generation",
        "seed": None,
    }
    assert trace.accepted > 0
    assert answer.system_fingerprint == "qbpass-0"


def test_a_completion_has_16_tokens_where_nothing_is_said_as_in_the_api(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="hello")
    assert answer.choices[0].text == STORY.encode()[:16].decode()
    assert answer.choices[0].finish_reason == "length"


def test_token_ids_are_a_prompt_too_and_come_back_if_asked_for(client: openai.OpenAI) -> None:
    extra = {"return_token_ids": True}
    answer = client.completions.create(model="tiny", prompt=[1, 2, 3], max_tokens=4, extra_body=extra)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    assert answer.choices[0].model_extra == {"token_ids": list(STORY.encode()[:4])}


def test_a_conversation_goes_through_the_models_template(client: openai.OpenAI, codec: TextCodec) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
    ]
    answer = client.chat.completions.create(model="tiny", messages=messages)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == STORY
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(codec.encode("system: be brief\nuser: hello\nassistant:"))


def test_a_streamed_completion_adds_up_to_the_whole_one(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    chunks = list(
        client.completions.create(model="tiny", prompt="x", max_tokens=99, stream=True, stream_options=options)
    )
    texts = [chunk.choices[0].text for chunk in chunks[:-1]]
    assert "".join(texts) == STORY
    assert len(texts) > 10
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(texts) - 1) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(STORY.encode()) + 1


def test_a_streamed_conversation_begins_with_the_role_and_has_no_usage_unless_asked(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "hello"}]
    chunks = list(client.chat.completions.create(model="tiny", messages=messages, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == STORY
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert [chunk.usage for chunk in chunks] == [None] * len(chunks)
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_model_is_listed_by_its_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "qbpass"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_an_answer_and_is_not_in_it(client: openai.OpenAI, stream: bool) -> None:
    asked = {"model": "tiny", "prompt": "x", "max_tokens": 99, "stop": ["steht im Walde 🦆", "im Walde,"]}
    if stream:
        text = "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True))
    else:
        text = client.completions.create(**asked).choices[0].text
    assert text == "ein Männlein steht "


def test_a_refusal_is_the_clients_own_exception(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model="tiny", prompt="x", n=2)
    assert raised.value.param == "n"
    assert raised.value.code == "unsupported_parameter"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt", prompt="x")
    assert missing.value.code == "model_not_found"
