"""The text of an answer: the same however tokens are grouped, and nothing of it is from behind a stop string."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qbpass.runtime.answer_text import AnswerText
from qbpass.runtime.stops import Stops


def decode(tokens: Sequence[int]) -> str:
    """Bytes as tokens."""
    return bytes(tokens).decode("utf-8", "replace")


def until_the_engine_stops(tokens: list[int], stops: Stops) -> list[int]:
    watch = stops.begin()
    for index, token in enumerate(tokens):
        if watch.push(token) is not None:
            return tokens[: index + 1]
    return tokens


@settings(deadline=None)
def before_stops(text: str, strings: Sequence[str]) -> str:
    """`text` up to where its first stop string begins, by its definition."""
    return text[: min((at for at in map(text.find, strings) if at >= 0), default=len(text))]


@given(
    st.text("abé🦆", max_size=30),
    st.lists(st.text("abé🦆", min_size=1, max_size=4), max_size=4),
    st.lists(st.integers(1, 5), min_size=1),
)
@example("baa", ["a", "baa"], [1])
@example("aab", ["ab"], [1])
@example("abab" * 3, ["baba", "abb"], [2, 1])
def test_pieces_add_up_to_the_text_before_the_first_stop_string(
    text: str, strings: list[str], widths: list[int]
) -> None:
    stops = Stops(strings=tuple(strings), decode=decode)
    tokens, pieces, index = until_the_engine_stops(list(text.encode()), stops), [], 0
    answer, shown, wanted = AnswerText(decode, stops), "", before_stops(decode(tokens), strings)
    while tokens:
        width = widths[index % len(widths)]
        pieces.append(answer.push(tokens[:width]))
        tokens, index = tokens[width:], index + 1
        shown += pieces[-1]
        assert not any(string in shown for string in strings)
    assert "".join(pieces) + answer.finish() == wanted


@pytest.mark.parametrize(("strings", "shown"), [(("c", "b"), "a"), (("x",), "abcb")])
def test_of_several_stop_strings_the_text_ends_before_the_first(strings: tuple[str, ...], shown: str) -> None:
    answer = AnswerText(decode, Stops(strings=strings, decode=decode))
    assert answer.push(b"abcb") + answer.finish() == shown


def test_text_is_held_back_only_while_a_stop_string_may_begin_in_it() -> None:
    answer = AnswerText(decode, Stops(strings=("abc",), decode=decode))
    assert [answer.push([byte]) for byte in b"xababd"] == ["x", "", "", "ab", "", "abd"]


def test_a_stop_string_that_ends_nothing_yet_is_text() -> None:
    stops = Stops(strings=("ab",), decode=decode, min_tokens=2)
    tokens = until_the_engine_stops(list(b"abxab"), stops)
    assert tokens == list(b"abxab")
    answer = AnswerText(decode, stops)
    assert answer.push(tokens) + answer.finish() == "abx"


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_the_token_that_ends_a_request_has_no_text(cut: int) -> None:
    answer = AnswerText(decode, Stops(frozenset({ord("!")})))
    assert answer.push(b"hi!"[:cut]) + answer.push(b"hi!"[cut:]) + answer.finish() == "hi"
