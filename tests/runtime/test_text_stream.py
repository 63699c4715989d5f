"""Streamed text is the text: no character is shown before all of its bytes are there."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from qbpass.runtime.text_stream import TextStream


def decode(tokens: Sequence[int]) -> str:
    """Bytes as tokens."""
    return bytes(tokens).decode("utf-8", "replace")


def spaced(tokens: Sequence[int]) -> str:
    """As SentencePiece has it: a space before each word, dropped at the start of a text."""
    return "".join(f" w{token}" for token in tokens).removeprefix(" ")


@given(st.text(), st.lists(st.integers(1, 4), min_size=1))
def test_pieces_add_up_to_the_text_however_tokens_are_grouped(text: str, widths: list[int]) -> None:
    tokens, stream, pieces, index = list(text.encode()), TextStream(decode), [], 0
    while tokens:
        width = widths[index % len(widths)]
        pieces.append(stream.push(tokens[:width]))
        tokens, index = tokens[width:], index + 1
    pieces.append(stream.finish())
    assert "".join(pieces) == text


def test_a_character_of_four_bytes_comes_with_its_last_byte() -> None:
    stream = TextStream(decode)
    assert [stream.push([byte]) for byte in "🦆".encode()] == ["", "", "", "🦆"]


def test_bytes_that_never_became_a_character_come_at_the_end() -> None:
    stream = TextStream(decode)
    assert stream.push([0x61]) == "a"
    assert stream.push([0xF0, 0x9F]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_a_space_that_a_tokenizer_drops_at_the_start_is_kept_between_pieces() -> None:
    stream = TextStream(spaced)
    assert [stream.push([token]) for token in (1, 2, 3)] == ["w1", " w2", " w3"]
