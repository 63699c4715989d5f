"""`qbpass generate BUNDLE -p PROMPT`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qbpass.commands.options import (
    Draft,
    FreshDraft,
    Json,
    Lean,
    OptionError,
    Policy,
    Provider,
    Threads,
    Width,
    checked_draft,
    checked_policy,
    session_spec,
)
from qbpass.commands.sampling_options import (
    Bias,
    FrequencyPenalty,
    GrammarFile,
    JsonSchema,
    MinP,
    MinTokens,
    PresencePenalty,
    Regex,
    RepetitionPenalty,
    SamplingOptions,
    Seed,
    StopStrings,
    Temperature,
    TopK,
    TopP,
    described,
)
from qbpass.json_file import write_json
from qbpass.models.errors import PromptError
from qbpass.screen import Steps, note, write_model_text

if TYPE_CHECKING:
    from qbpass.models.tokenizer import TextCodec
    from qbpass.runtime.drafting.drafts import DraftModel
    from qbpass.runtime.endpoint import Endpoint
    from qbpass.runtime.sampling.settings import Sampling
    from qbpass.runtime.stops import Stops
    from qbpass.runtime.trace import Trace

MAX_PROMPT_BYTES = 16 * 2**20


def generate(
    bundle: Annotated[Path, typer.Argument(help="A folder that `qbpass rewrite` wrote.")],
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="The prompt (- reads stdin).")] = None,
    token_ids: Annotated[
        str | None, typer.Option("--token-ids", metavar='"1,2,3"', help="The prompt as token ids instead of text.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Plain text: no chat template.")] = False,
    draft: Draft = "ngram",
    k: Width = None,
    policy: Policy = "adaptive",
    fresh_draft: FreshDraft = False,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Stop after this many tokens.")] = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    seed: Seed = None,
    min_tokens: MinTokens = 0,
    stop: StopStrings = None,
    bias: Bias = None,
    json_schema: JsonSchema = None,
    grammar: GrammarFile = None,
    regex: Regex = None,
    provider: Provider = "cpu",
    threads: Threads = None,
    lean: Lean = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write what every round did to FILE, as JSON lines.")
    ] = None,
    json: Json = None,
) -> None:
    """Continue a prompt with speculative decoding: the same tokens as serial decoding, byte for byte."""
    from qbpass.rewrites.bundle import check_recipe, open_bundle
    from qbpass.runtime.drafting.drafts import Drafts
    from qbpass.runtime.drafting.named import POLICIES
    from qbpass.runtime.engine import Engine, Request
    from qbpass.runtime.open_target import open_target
    from qbpass.runtime.trace_log import TraceLog

    checked_draft(draft)
    checked_policy(policy)
    if (prompt is None) == (token_ids is None):
        raise OptionError("give the prompt either as text (-p) or as token ids (--token-ids)")
    spec = session_spec(provider, threads)
    opened = open_bundle(bundle)
    codec = _codec(opened.reference.tokenizer_files, needed=prompt is not None)
    ids = _token_ids(token_ids) if token_ids is not None else _encode(codec, prompt or "", raw)
    recipe = check_recipe(opened, spec)
    options = SamplingOptions(
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed, min_tokens,
        stop, bias, json_schema, grammar, regex,
    )  # fmt: skip
    ends = opened.manifest.eos_token_ids
    stops = options.stops(ends, codec)
    sampling = options.sampling(ends, opened.manifest.interface.vocab_size, codec)
    target = open_target(opened, spec, lean=lean)
    with Steps() as steps:
        drafts = Drafts(draft, opened, spec, fresh=fresh_draft, progress=steps.count)
        engine = Engine(target, drafts.drafter(target), POLICIES[policy](target.max_queries))
    request = Request(tuple(ids), max_new_tokens, k=k, choosing=sampling, stops=stops)
    clock = _Clock(_writer(codec, stops, quiet=str(json) == "-"))
    with nullcontext() if trace is None else trace.open("w", encoding="utf-8") as stream:
        engine.trace_log = None if stream is None else TraceLog(stream)
        endpoint, counters = engine.generate(request, clock.on_tokens)
    clock.finish()
    note(_summary(endpoint, counters, clock, sampling))
    if json is not None:
        value = {"recipe": recipe.model_dump(mode="json"), "prompt_token_ids": list(ids)}
        value |= {"sampling": described(sampling)}
        value |= {"draft": {"name": draft, "model": _dumped(drafts.model)}}
        write_json(json, value | _result(endpoint, counters, clock, codec, stops))


def _dumped(model: DraftModel | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json")


def _codec(files: dict[str, Path], *, needed: bool) -> TextCodec | None:
    """The bundle's tokenizer; None where it has none and nothing needs one. Raises ModelFileError where one is."""
    from qbpass.models.tokenizer import TextCodec

    return TextCodec(files) if needed or "tokenizer.json" in files else None


def _encode(codec: TextCodec | None, prompt: str, raw: bool) -> list[int]:
    assert codec is not None
    if prompt == "-":
        data = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
        if len(data) > MAX_PROMPT_BYTES:
            raise PromptError(f"the prompt on stdin is longer than {MAX_PROMPT_BYTES:,} bytes: shorten it")
        try:
            prompt = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise PromptError(f"the prompt on stdin is not UTF-8 ({error.reason} at byte {error.start})") from error
    return codec.encode(prompt) if raw else codec.encode_prompt(prompt)


def _token_ids(text: str) -> list[int]:
    parts = text.replace(",", " ").split()
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise PromptError(f"--token-ids takes numbers separated by commas, not {text[:60]!r}")
    return [int(part) for part in parts]


def _writer(codec: TextCodec | None, stops: Stops, *, quiet: bool) -> Callable[[Sequence[int] | None], None]:
    """Shows tokens as they come (None: the end), as text, or as ids where there is no tokenizer."""
    from qbpass.runtime.answer_text import AnswerText

    stream = None if codec is None else AnswerText(codec.decode, stops)

    def write(tokens: Sequence[int] | None) -> None:
        if quiet:
            return
        if stream is None:
            text = "\n" if tokens is None else "".join(f"{token} " for token in tokens)
        else:
            text = stream.finish() + "\n" if tokens is None else stream.push(tokens)
        write_model_text(text)

    return write


class _Clock:
    """Passes tokens on, and notes when the first and the last came."""

    def __init__(self, write: Callable[[Sequence[int] | None], None]) -> None:
        self._write = write
        self.started = self.first = self.last = time.perf_counter()
        self._count = 0

    def on_tokens(self, tokens: Sequence[int]) -> None:
        self.last = time.perf_counter()
        if self._count == 0:
            self.first = self.last
        self._count += len(tokens)
        self._write(tokens)

    def finish(self) -> None:
        self._write(None)

    @property
    def prefill(self) -> float:
        return self.first - self.started

    @property
    def decoding(self) -> float:
        """Seconds from the first token, which prefill gives, to the last."""
        return self.last - self.first

    @property
    def rate(self) -> float | None:
        """Tokens a second behind the first."""
        return (self._count - 1) / self.decoding if self.decoding > 0 else None


def _summary(endpoint: Endpoint, trace: Trace, clock: _Clock, sampling: Sampling) -> str:
    rate = "–" if clock.rate is None else f"{clock.rate:.1f}"
    per_round = "–" if trace.tokens_per_round is None else f"{trace.tokens_per_round:.2f}"
    acceptance = "–" if trace.acceptance is None else f"{trace.acceptance:.0%}"
    reason = endpoint.stop_reason.replace("_", " ")
    drawn = f", drawn with --seed {sampling.seed}" if sampling.temperature > 0 else ""
    return (
        f"{endpoint.length} tokens behind {trace.prompt_tokens}, {rate} tokens/s, {per_round} tokens a round, "
        f"acceptance {acceptance}, stopped by {reason}{drawn}"
    )


def _result(endpoint: Endpoint, trace: Trace, clock: _Clock, codec: TextCodec | None, stops: Stops) -> dict[str, Any]:
    return {
        "endpoint": {
            "token_ids": list(endpoint.token_ids),
            "end_of_generation": endpoint.end_of_generation,
            "length": endpoint.length,
            "last_token": endpoint.last_token,
            "stop_reason": endpoint.stop_reason,
        },
        "text": None if codec is None else _text(codec, stops, endpoint.token_ids),
        "trace": asdict(trace) | {"acceptance": trace.acceptance, "tokens_per_round": trace.tokens_per_round},
        "seconds": {"prefill": clock.prefill, "decoding": clock.decoding},
    }


def _text(codec: TextCodec, stops: Stops, tokens: Sequence[int]) -> str:
    from qbpass.runtime.answer_text import AnswerText

    text = AnswerText(codec.decode, stops)
    return text.push(tokens) + text.finish()
