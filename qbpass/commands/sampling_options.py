"""Options of how tokens are chosen, and when a request ends."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qbpass.commands.options import OptionError

if TYPE_CHECKING:
    from qbpass.models.tokenizer import TextCodec
    from qbpass.runtime.sampling.grammar import Grammar
    from qbpass.runtime.sampling.settings import Sampling
    from qbpass.runtime.stops import Stops

Temperature = Annotated[float, typer.Option("--temperature", help="0 is greedy; more draws tokens at random.")]
TopK = Annotated[int, typer.Option("--top-k", help="Draw among the K likeliest tokens. 0: off.")]
TopP = Annotated[float, typer.Option("--top-p", help="Draw among the fewest likeliest that have this share. 1: off.")]
MinP = Annotated[float, typer.Option("--min-p", help="Draw no token under this share of the likeliest's. 0: off.")]
RepetitionPenalty = Annotated[
    float, typer.Option("--repetition-penalty", help="Divide scores of tokens that the text has already. 1: off.")
]
PresencePenalty = Annotated[
    float, typer.Option("--presence-penalty", help="Off the score of a token that was generated already. 0: off.")
]
FrequencyPenalty = Annotated[
    float, typer.Option("--frequency-penalty", help="Off a token's score for each time it was generated. 0: off.")
]
Seed = Annotated[
    int | None, typer.Option("--seed", help="Of the random numbers, up to 64 bits. [default: drawn, and shown]")
]
MinTokens = Annotated[int, typer.Option("--min-tokens", help="Don't end before this many tokens. 0: off.")]
StopStrings = Annotated[
    list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text. May be given again.")
]
Bias = Annotated[
    list[str] | None,
    typer.Option("--bias", metavar="ID:X", help="Add X to the score of a token id (-inf bans it). May be given again."),
]
JsonSchema = Annotated[
    Path | None, typer.Option("--json-schema", metavar="FILE", help="Generate JSON of this schema only.")
]
GrammarFile = Annotated[
    Path | None,
    typer.Option("--grammar", metavar="FILE", help="Generate text of this grammar only (llguidance's Lark)."),
]
Regex = Annotated[Path | None, typer.Option("--regex", metavar="FILE", help="Generate text of this regex only.")]


@dataclass(frozen=True)
class SamplingOptions:
    """The options' values, as given."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    min_tokens: int
    stop: list[str] | None
    bias: list[str] | None
    json_schema: Path | None
    grammar: Path | None
    regex: Path | None

    def sampling(self, stop_ids: Sequence[int], vocab_size: int, codec: TextCodec | None) -> Sampling:
        """Raises OptionError for options that contradict each other, SamplingError for a value outside its range,
        GrammarError for a grammar that can't be used.
        """
        from qbpass.runtime.sampling.grammar import Vocabulary, compiled
        from qbpass.runtime.sampling.settings import Sampling

        given = {"--top-k": self.top_k != 0, "--top-p": self.top_p != 1, "--min-p": self.min_p != 0}
        drawing = [name for name, is_set in (given | {"--seed": self.seed is not None}).items() if is_set]
        if self.temperature == 0 and drawing:
            raise OptionError(f"{drawing[0]} is for drawing, and a temperature of 0 draws nothing: give --temperature")
        grammar, constraint = self._grammar(), None
        if grammar is not None:
            if codec is None:
                raise OptionError("a grammar needs the model's tokenizer: put tokenizer.json beside the model")
            constraint = compiled(grammar, Vocabulary.of(codec.definition, vocab_size, stop_ids))
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            bias=_biases(self.bias or []),
            min_tokens=self.min_tokens,
            stop_ids=frozenset(stop_ids),
            seed=secrets.randbits(32) if self.seed is None else self.seed,  # 32 bits: short enough to type again
            grammar=constraint,
        )

    def stops(self, stop_ids: Sequence[int], codec: TextCodec | None) -> Stops:
        """Raises PromptError for strings that can't be searched for."""
        from qbpass.runtime.stops import Stops

        decode = None if codec is None else codec.decode
        return Stops(frozenset(stop_ids), tuple(self.stop or ()), decode, self.min_tokens)

    def _grammar(self) -> Grammar | None:
        from qbpass.runtime.sampling.grammar import MAX_GRAMMAR_BYTES, Grammar, Kind

        files: dict[Kind, Path | None] = {"json_schema": self.json_schema, "lark": self.grammar, "regex": self.regex}
        given = [(kind, path) for kind, path in files.items() if path is not None]
        if len(given) > 1:
            raise OptionError("give one of --json-schema, --grammar and --regex")
        for kind, path in given:
            with path.open("rb") as file:
                data = file.read(MAX_GRAMMAR_BYTES + 1)
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise OptionError(f"{path} is not UTF-8 ({error.reason} at byte {error.start})") from error
            return Grammar(kind, text.removesuffix("\n"))
        return None


def described(sampling: Sampling) -> dict[str, Any]:
    """For the result's JSON: every setting that says how tokens were chosen."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    bias = {str(token): value if math.isfinite(value) else str(value) for token, value in sampling.bias.items()}
    grammar = getattr(sampling.grammar, "grammar", None)
    return {
        **{name: getattr(sampling, name) for name in names},
        "bias": bias,
        "min_tokens": sampling.min_tokens,
        "seed": sampling.seed if sampling.temperature > 0 else None,
        "grammar": None if grammar is None else {"kind": grammar.kind, "source": grammar.source},
    }


def _biases(texts: Sequence[str]) -> dict[int, float]:
    found: dict[int, float] = {}
    for text in texts:
        token, _, value = text.partition(":")
        try:
            if not (token.isascii() and token.isdigit() and len(token) < 10):
                raise ValueError
            found[int(token)] = float(value)
        except ValueError:
            raise OptionError(f"--bias takes a token id and a number, such as 42:-1.5, not {text[:60]!r}") from None
    return found
