"""Constraints: what is generated belongs to a language, given by a JSON schema, a regex or a Lark grammar.

llguidance (the extra `grammar`) says which tokens may follow. Its matcher is the state: it is copied where a position
is left (microseconds, since copies share what was compiled), so that nothing in it has to be rolled back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from qbpass.models.session import one_line
from qbpass.runtime.sampling.errors import GrammarError

Kind = Literal["json_schema", "regex", "lark"]

#: A grammar may come from a stranger. Beyond its text's size, llguidance bounds what compiling and matching may cost.
MAX_GRAMMAR_BYTES = 64 * 1024
#: A lexer's state takes one or two kB; the other two are the library's own.
_LIMITS = {"max_lexer_states": 50_000, "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 200_000}
_NAMES = {"json_schema": "JSON schema", "regex": "regex", "lark": "grammar"}
_KEPT = 32  # compiled grammars, and tokenizers


@dataclass(frozen=True)
class Grammar:
    """source: the text of a JSON schema, of a regex (Rust's syntax, without look-around), or a grammar in llguidance's
    form of Lark. Raises GrammarError for a text that is too long, or a schema that is not JSON.
    """

    kind: Kind
    source: str

    def __post_init__(self) -> None:
        size = len(self.source.encode("utf-8", "surrogatepass"))
        if size > MAX_GRAMMAR_BYTES:
            raise GrammarError(f"the {self.name} has {size:,} bytes: at most {MAX_GRAMMAR_BYTES:,} are read")
        if not self.source.strip():
            raise GrammarError(f"the {self.name} is empty")
        if self.kind == "json_schema":
            try:
                json.loads(self.source)
            except (ValueError, RecursionError) as error:
                raise GrammarError(f"the {self.name} is not JSON ({one_line(error, 120)})") from error

    @property
    def name(self) -> str:
        return _NAMES[self.kind]

    def refused(self, error: str) -> GrammarError:
        """`error`: llguidance's own words, many lines."""
        said = " ".join(error.split("<state>")[0].split())
        return GrammarError(f"the {self.name} can't be used: {said[:200]}")


@dataclass(frozen=True)
class Vocabulary:
    """What a grammar is compiled for: the text of the model's tokenizer.json, the width of its logits, and its
    end-of-generation tokens, which are allowed where the language may end.
    """

    tokenizer: str
    size: int
    stop_ids: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: str, size: int, stop_ids: Iterable[int]) -> Vocabulary:
        """Raises GrammarError where there is no end-of-generation token: such a text would have no end."""
        stops = tuple(sorted(stop_ids))
        if not stops:
            raise GrammarError("a grammar needs a model with an end-of-generation token, and this one names none")
        return cls(tokenizer, size, stops)


class Constraint:
    """A `Processor` that bans what the grammar does not allow. Made by `compiled`."""

    def __init__(self, grammar: Grammar, matcher: Any):
        self.grammar, self._matcher = grammar, matcher

    def begin(self, prompt: Sequence[int]) -> Matched:
        """The prompt is outside the language: it begins behind it."""
        del prompt
        # A copy of its own: a matcher is busy while it works, and requests may run at once.
        return Matched(self._matcher.deep_copy())

    def apply(self, prefix: np.ndarray, state: Matched, scores_V: np.ndarray) -> np.ndarray:
        bits = np.frombuffer(state.matcher.compute_bitmask(), np.uint8)
        if state.matcher.is_error():
            raise self.grammar.refused(state.matcher.get_error())
        allowed = np.unpackbits(bits, count=len(scores_V), bitorder="little").view(bool)
        scores_V[~allowed] = -np.inf
        return scores_V

    def advance(self, state: Matched, token: int) -> Matched:
        """Raises GrammarError for a token that `apply` banned, and where going on would cost more than is allowed."""
        matcher = state.matcher.deep_copy()
        if not matcher.consume_token(token):
            raise self.grammar.refused(matcher.get_error())
        return Matched(matcher)


@dataclass(frozen=True)
class Matched:
    """A matcher that is never advanced: copies are."""

    matcher: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> Matched:
        del memo
        return Matched(self.matcher.deep_copy())


@lru_cache(maxsize=_KEPT)
def compiled(grammar: Grammar, vocabulary: Vocabulary) -> Constraint:
    """Kept for the next request with this grammar and tokenizer.

    Raises GrammarError where llguidance is not installed, or refuses the grammar or the tokenizer.
    """
    llguidance = _library()
    make = getattr(llguidance.LLMatcher, f"grammar_from_{grammar.kind}")
    limits = llguidance.LLParserLimits(**_LIMITS, verbose_errors=False)
    try:
        matcher = llguidance.LLMatcher(_tokenizer(vocabulary), make(grammar.source), log_level=0, limits=limits)
    except ValueError as error:
        raise grammar.refused(str(error)) from error
    if matcher.is_error():
        raise grammar.refused(matcher.get_error())
    return Constraint(grammar, matcher)


@lru_cache(maxsize=_KEPT)
def _tokenizer(vocabulary: Vocabulary) -> Any:
    try:
        return _library().LLTokenizer(
            vocabulary.tokenizer, n_vocab=vocabulary.size, eos_token=list(vocabulary.stop_ids)
        )
    except Exception as error:  # a binding's: ValueError, RuntimeError or a panic's own type
        raise GrammarError(f"the model's tokenizer can't be used with a grammar ({one_line(error, 160)})") from error


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise GrammarError("grammars need llguidance: pip install 'qbpass[grammar]'") from error
    return llguidance
