"""How a request asks for its tokens to be chosen."""

from __future__ import annotations

import json
import secrets

from qbpass.models.tokenizer import TextCodec
from qbpass.runtime.sampling.grammar import Constraint, Grammar, Vocabulary, compiled
from qbpass.runtime.sampling.settings import Sampling
from qbpass.runtime.server.api_error import ApiError, unsupported
from qbpass.runtime.server.bodies import GenerationBody

_DRAWN_SEED_BITS = 32  # short enough to type again


def choosing_of(body: GenerationBody, stop_ids: frozenset[int], grammar: Constraint | None) -> Sampling:
    """A field that is absent is off. A seed that is absent is drawn; a negative one is taken by its 64 bits.

    Raises SamplingError for a value outside its range.
    """
    return Sampling(
        temperature=body.temperature or 0.0,
        top_k=max(body.top_k or 0, 0),  # -1 is off, too, as vLLM has it
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        bias={int(token): value for token, value in (body.logit_bias or {}).items()},
        min_tokens=body.min_tokens or 0,
        stop_ids=stop_ids,
        seed=secrets.randbits(_DRAWN_SEED_BITS) if body.seed is None else body.seed % 2**64,
        grammar=grammar,
    )


def seed_of(choosing: object) -> int | None:
    """The seed that gives the same answer again; None where nothing was drawn."""
    return choosing.seed if isinstance(choosing, Sampling) and choosing.temperature > 0 else None


def grammar_of(body: GenerationBody, codec: TextCodec, vocab_size: int, stop_ids: frozenset[int]) -> Constraint | None:
    """stop_ids: the model's own. Raises GrammarError for a schema that can't be used, ApiError for a contradiction."""
    asked = body.response_format
    if asked is None or asked.type == "text":
        return None
    if body.ignore_eos:
        raise unsupported("ignore_eos", "a text of a given form ends where its form does: leave ignore_eos out")
    schema = {"type": "object"} if asked.json_schema is None else asked.json_schema.schema_
    if (asked.type == "json_schema") != (asked.json_schema is not None) or schema is None:
        raise ApiError(
            400, "response_format: give json_schema with a schema, for type json_schema", param="response_format"
        )
    try:
        source = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise ApiError(400, "response_format: the schema has numbers that are none", param="response_format") from error
    return compiled(Grammar("json_schema", source), Vocabulary.of(codec.definition, vocab_size, stop_ids))
