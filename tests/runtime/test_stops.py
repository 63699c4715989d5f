"""A request stops where serial decoding would: at the token that completes a stop, wherever blocks end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fake_target import FakeTarget
from hypothesis import given
from hypothesis import strategies as st

from qbpass.models.errors import PromptError
from qbpass.runtime.answer_text import AnswerText
from qbpass.runtime.drafting.ngram import NgramDrafter
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.stops import Stops

LETTERS = "abé\u4e2d"
BYTES = LETTERS.encode()  # a token is one byte, so that characters end inside tokens


def decode(tokens: Sequence[int]) -> str:
    return bytes(BYTES[token] for token in tokens).decode("utf-8", errors="replace")


def naive(tokens: Sequence[int], strings: Sequence[str], min_tokens: int) -> int | None:
    """The first count of tokens whose text has a stop string that begins behind the first `min_tokens`."""
    skipped = len(decode(tokens[:min_tokens]).rstrip("\ufffd"))
    for count in range(min_tokens + 1, len(tokens) + 1):
        text = decode(tokens[:count]).rstrip("\ufffd")
        if any(string in text[skipped:] for string in strings):
            return count
    return None


@given(
    text=st.text(LETTERS, min_size=1, max_size=30),
    strings=st.lists(st.text(LETTERS, min_size=1, max_size=3), min_size=1, max_size=3).map(tuple),
)
def test_a_stop_string_is_found_at_the_token_that_completes_it(text: str, strings: tuple[str, ...]) -> None:
    tokens = [BYTES.index(byte) for byte in text.encode()]
    watch = Stops(strings=strings, decode=decode).begin()
    found = next((count for count, token in enumerate(tokens, 1) if watch.push(token) is not None), None)
    assert found == naive(tokens, strings, 0)


def test_strings_in_the_first_tokens_end_nothing_when_a_minimum_is_asked_for() -> None:
    watch = Stops(strings=("ab",), decode=decode, min_tokens=3).begin()
    assert [watch.push(token) for token in (0, 1, 0, 1, 0, 1)] == [None, None, None, None, None, "stop_string"]


@pytest.mark.parametrize("k", [0, 3, 7])
def test_a_stop_string_inside_a_block_ends_the_request_as_it_ends_serial_decoding(k: int) -> None:
    period = [0, 1, 0, 0, 1, 1]  # "abaabb"

    def next_token(tokens: Sequence[int]) -> int:
        return period[len(tokens) % len(period)]

    stops = Stops(strings=("bbab",), decode=decode)
    request = Request(tuple(period), 30, stops=stops, k=k)
    engine = Engine(FakeTarget(next_token, len(BYTES), max_queries=8), NgramDrafter())
    endpoint, trace = engine.generate(request)
    assert decode(endpoint.token_ids) == "abaabbab"
    answer = AnswerText(decode, stops)
    assert answer.push(endpoint.token_ids) + answer.finish() == "abaa"
    assert (endpoint.stop_reason, endpoint.end_of_generation) == ("stop_string", False)
    assert (trace.proposed > 0) == (k > 0)


@pytest.mark.parametrize(
    ("strings", "message"),
    [(("",), "of 1 to 1000 characters"), (("a" * 1001,), "of 1 to 1000"), (("a",) * 17, "at most 16")],
)
def test_strings_that_cannot_be_searched_for_are_refused(strings: tuple[str, ...], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        Stops(strings=strings, decode=decode)


def test_strings_need_a_tokenizer() -> None:
    with pytest.raises(PromptError, match=r"put tokenizer\.json beside the model"):
        Stops(strings=("a",))


def test_stop_tokens_that_are_given_twice_and_differ_are_refused() -> None:
    with pytest.raises(PromptError, match="given twice"):
        Request((1,), stop_ids=frozenset({1}), stops=Stops(frozenset({2})))
    assert Request((1,), stop_ids=frozenset({1})).all_stops.ids == {1}
