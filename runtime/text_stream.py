"""Text from tokens as they come: a character is shown once all of its bytes are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

INCOMPLETE = "\ufffd"


class TextStream:
    """Decodes a growing sequence of tokens. decode: token ids to text (TextCodec.decode).

    Tokens are decoded behind a few that came before them, since a tokenizer may drop a leading space at the start of
    a text. Text that ends in the replacement character is held back: the next token may complete it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._start = 0  # first token decoded together with the new ones
        self._shown = 0  # tokens whose text was returned

    def push(self, tokens: Sequence[int]) -> str:
        """The text that `tokens` complete."""
        self._ids.extend(tokens)
        text = self._new_text()
        if not text or text.endswith(INCOMPLETE):
            return ""
        self._start, self._shown = self._shown, len(self._ids)
        return text

    def finish(self) -> str:
        """What was held back: bytes that never became a character."""
        text = self._new_text()
        self._start = self._shown = len(self._ids)
        return text

    def _new_text(self) -> str:
        before = self._decode(self._ids[self._start : self._shown])
        return self._decode(self._ids[self._start :])[len(before) :]
