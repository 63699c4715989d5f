"""The text of an answer, as far as it may be shown: whole characters, and nothing from a stop string on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qbpass.runtime.stops import Stops
from qbpass.runtime.text_stream import TextStream


class AnswerText:
    """Pieces add up to the same text however the tokens are grouped. decode: token ids to text.

    Text that a stop string may begin with is held back until it is known not to. The token that ends a request has no
    text of its own, whatever the tokenizer calls it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Stops) -> None:
        self._stream, self._stops = TextStream(decode), stops
        self._count = 0
        self._held = ""
        self._stopped = False

    def push(self, tokens: Sequence[int]) -> str:
        """The text that `tokens` complete."""
        if not self._stops.strings:
            return self._stream.push([token for token in tokens if token not in self._stops.ids])
        return "".join(self._push(token) for token in tokens)

    def finish(self) -> str:
        """What was held back."""
        if self._stopped:
            return ""
        text, self._held, self._stopped = self._held + self._stream.finish(), "", True
        return text

    def _push(self, token: int) -> str:
        if self._stopped or token in self._stops.ids:
            return ""
        self._count += 1
        text, self._held = self._held + self._stream.push([token]), ""
        if self._count <= self._stops.min_tokens:  # a stop string ends nothing yet, as in Stops
            return text
        found = [at for at in map(text.find, self._stops.strings) if at >= 0]
        if found:
            self._stopped = True
            return text[: min(found)]
        held = max((_overlap(text, string) for string in self._stops.strings), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, string: str) -> int:
    """Characters at the end of `text` that `string` begins with."""
    most = min(len(text), len(string) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(string[:size])), 0)
