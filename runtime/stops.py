"""When a request ends: token ids, strings in the text, checked token by token as serial decoding would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qbpass.models.errors import PromptError
from qbpass.runtime.endpoint import StopReason
from qbpass.runtime.text_stream import TextStream

MAX_STRINGS, MAX_STRING_CHARACTERS = 16, 1000


@dataclass(frozen=True)
class Stops:
    """ids: tokens that end a request and belong to its output. strings: text that does (AnswerText leaves it out).
    decode: token ids to text, needed for strings. min_tokens: strings in the first so many tokens end nothing (ids are
    kept from being chosen at all: Sampling.min_tokens).

    Raises PromptError for strings that can't be searched for.
    """

    ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None
    min_tokens: int = 0

    def __post_init__(self) -> None:
        if len(self.strings) > MAX_STRINGS or any(not 0 < len(s) <= MAX_STRING_CHARACTERS for s in self.strings):
            raise PromptError(f"stop strings: at most {MAX_STRINGS}, each of 1 to {MAX_STRING_CHARACTERS} characters")
        if self.strings and self.decode is None:
            raise PromptError("stop strings need the model's tokenizer: put tokenizer.json beside the model")

    def begin(self) -> StopWatch:
        """A new request."""
        return StopWatch(self)


class StopWatch:
    """Told every visible token of one request, in order."""

    def __init__(self, stops: Stops):
        self._stops = stops
        self._count = 0
        self._longest = max(map(len, stops.strings), default=0)
        self._stream = TextStream(stops.decode) if stops.decode is not None and stops.strings else None
        self._tail = ""  # text behind which a stop string may still begin

    def push(self, token: int) -> StopReason | None:
        """Why the request ends with this token; None where it goes on."""
        self._count += 1
        if token in self._stops.ids:
            return "end_of_generation"
        if self._stream is None:
            return None
        text = self._tail + self._stream.push([token])
        self._tail = text[max(len(text) - self._longest + 1, 0) :]
        if self._count <= self._stops.min_tokens:
            self._tail = ""  # a string that ends nothing now does not end the request later
            return None
        return "stop_string" if any(string in text for string in self._stops.strings) else None
