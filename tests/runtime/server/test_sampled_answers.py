"""Answers that are drawn, penalized or constrained are the library's own for the same settings, speculation or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from fake_target import FakeTarget
from served_model import CONTEXT, END, VOCABULARY, Running, running, service_of

from qbpass.models.tokenizer import TextCodec
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.sampling.settings import Sampling

PROMPT = "abab"


class Babbler(FakeTarget):
    """Logits of its own for every sequence: normal numbers, seeded by the last few tokens."""

    def __init__(self) -> None:
        super().__init__(lambda tokens: 0, VOCABULARY, context_length=CONTEXT)

    def _rows(self, tokens: Any) -> np.ndarray:
        rows = []
        for token in tokens:
            self.kv.append(token)
            rows.append(np.random.default_rng(self.kv[-2:]).normal(0, 3, VOCABULARY).astype(np.float32))
        return np.stack(rows)


@pytest.fixture(scope="module")
def server(codec: TextCodec) -> Iterator[Running]:
    with running(service_of(codec, Babbler())) as it:
        yield it


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with server.client() as made:
        yield made


def own(sampling: Sampling) -> list[int]:
    request = Request(tuple(PROMPT.encode()), 40, frozenset({END}), choosing=sampling)
    return list(Engine(Babbler()).generate(request)[0].token_ids)


SETTINGS: list[tuple[dict[str, Any], Sampling]] = [
    ({}, Sampling(temperature=0)),
    ({"temperature": 1, "seed": 7}, Sampling(seed=7)),
    ({"temperature": 0.7, "top_p": 0.9, "seed": 2**63}, Sampling(temperature=0.7, top_p=0.9, seed=2**63)),
    ({"temperature": 1, "seed": -1}, Sampling(seed=2**64 - 1)),
    ({"temperature": 2, "extra_body": {"top_k": 5, "min_p": 0.1}, "seed": 3}, Sampling(2.0, 5, min_p=0.1, seed=3)),
    ({"temperature": 1, "extra_body": {"top_k": -1}, "seed": 3}, Sampling(seed=3)),
    (
        {"presence_penalty": 1.5, "frequency_penalty": -0.5, "extra_body": {"repetition_penalty": 1.2}},
        Sampling(0, repetition_penalty=1.2, presence_penalty=1.5, frequency_penalty=-0.5),
    ),
    ({"logit_bias": {"97": 100, "98": -100}}, Sampling(0, bias={97: 100.0, 98: -100.0})),
    (
        {"extra_body": {"min_tokens": 30}, "logit_bias": {str(END): 100}},
        Sampling(0, bias={END: 100.0}, min_tokens=30, stop_ids=frozenset({END})),
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("asked", "sampling"), SETTINGS)
def test_an_answer_is_the_engines_own_for_the_same_settings(
    client: openai.OpenAI, asked: dict[str, Any], sampling: Sampling, stream: bool
) -> None:
    extra = {**asked.get("extra_body", {}), "return_token_ids": True}
    named = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, **asked, "extra_body": extra, "stream": stream}
    answer = client.completions.create(**named)
    chunks = [answer] if not stream else list(answer)
    shown = [token for chunk in chunks for token in (chunk.choices[0].model_extra or {}).get("token_ids", [])]
    assert shown == own(sampling)


def test_the_settings_above_give_different_answers() -> None:
    answers = {tuple(own(sampling)) for _, sampling in SETTINGS}
    assert len(answers) == len(SETTINGS)


def test_a_seed_that_was_drawn_is_told_and_gives_the_same_answer_again(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "temperature": 1}
    first = client.completions.create(**asked)
    seed = first.usage.model_extra["qbpass"]["seed"]
    assert client.completions.create(**asked, seed=seed).choices[0].text == first.choices[0].text
    assert client.completions.create(**asked, seed=seed + 1).choices[0].text != first.choices[0].text


def test_an_answer_can_be_made_to_fit_a_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 3, "maximum": 5}},
        "required": ["ok", "n"],
        "additionalProperties": False,
    }
    for seed in range(3):
        answer = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hello"}],
            temperature=1,
            seed=seed,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )
        assert answer.choices[0].finish_reason == "stop"
        value = json.loads(answer.choices[0].message.content or "")
        assert isinstance(value["ok"], bool)
        assert 3 <= value["n"] <= 5


def test_an_answer_can_be_made_a_json_object(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="x", max_tokens=100, extra_body={"response_format": {"type": "json_object"}}
    )
    assert answer.choices[0].text.lstrip().startswith("{")


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "https://x.example/s"}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"description": "x" * 70000}}}},
        {"response_format": {"type": "json_object"}, "ignore_eos": True},
        {"logit_bias": {"999999": 1}},
        {"temperature": 0, "repetition_penalty": 0.001},
    ],
)
def test_settings_that_can_not_be_followed_are_400_and_the_next_request_is_served(
    client: openai.OpenAI, more: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="x", extra_body=more)
    assert "\n" not in refused.value.body["message"]
    assert client.completions.create(model="tiny", prompt=PROMPT, max_tokens=5).usage.completion_tokens == 5
