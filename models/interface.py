"""What any decoder's graph takes and gives, complete or not, and why qbpass can't run it where it is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qbpass.models.contract import CachePair, DecoderContract, KVPair
from qbpass.models.errors import ContractError

#: Every code of a problem and what it says of the graph. Append-only: a code never changes its meaning.
PROBLEM_CODES = {
    "MERGED_DECODER": "two decoders behind an If: what is said is said of the branch with a past",
    "NESTED_DECODER": "attention is inside the body of a Loop or Scan",
    "NO_KV_CACHE": "no input or output is a cache that attention reads",
    "NO_PAST": "keys and values are given out and none are taken: a decoder for the first call alone",
    "NO_PRESENT": "a cache is taken and its successor is not given out",
    "NEW_ROWS_ONLY": "a cache is taken and only its new rows are given out",
    "FUSED_KV": "keys and values, or heads and batch, share a tensor or an axis: not one 4-D tensor a key and a value",
    "LATENT_KV": "keys and values are computed from one cached tensor",
    "CACHE_AXES": "rows are not appended along axis 2",
    "PREPENDED_CACHE": "new rows are put in front of the past",
    "SLIDING_CACHE": "a cache loses rows when new ones come",
    "STATIC_CACHE": "new rows are written into a buffer of fixed length",
    "QUANTIZED_CACHE": "a cache holds quantized rows",
    "CACHE_WITHOUT_ATTENTION": "a cache is appended to and no attention reads it",
    "AMBIGUOUS_CACHE": "two caches are both the keys, or both the values, of one attention",
    "UNPAIRED_CACHE": "an attention has a cache for its keys alone, or for its values alone",
    "UNKNOWN_HEADS": "the number of KV heads is not in the graph",
    "UNKNOWN_HEAD_DIM": "the head dimension is not in the graph",
    "CROSS_ATTENTION_CACHE": "attention reads keys and values of another stream, which are never appended to",
    "RECURRENT_STATE": "a state is replaced in every call (recurrent, convolution, state space)",
    "INPUT_EMBEDDINGS": "embeddings are fed in place of token ids",
    "ENCODER_STATES": "attention computes keys and values from another model's hidden states",
    "ATTENTION_BIAS_INPUT": "a ready-made mask or bias of the scores is fed",
    "NO_LOGITS": "no output holds logits",
    "AMBIGUOUS_LOGITS": "several outputs could be logits",
    "UNKNOWN_VOCABULARY": "the vocabulary size is not in the graph",
    "LAST_TOKEN_LOGITS": "logits are computed for the last position alone",
    "NO_INPUT_IDS": "no integer input picks rows of an embedding table",
    "LOGITS_COUNT_INPUT": "an input says how many rows of logits to compute",
    "COUNTER_INPUT": "an input says how many rows of a cache count, or where new ones go",
    "POSITION_RANK": "positions are not given as (batch, sequence)",
    "UNKNOWN_INPUT": "an input of no known part",
    "FIXED_BATCH": "the batch is fixed to another number than 1",
    "FIXED_WIDTH": "the number of tokens a call is fixed",
    "FIXED_PAST": "the length of the past is fixed",
    "SEARCH_LIMIT": "the graph is too tangled to be searched to the end",
}


@dataclass(frozen=True)
class InterfaceProblem:
    """One reason why a graph can't be run as a decoder. `code` is one of PROBLEM_CODES."""

    code: str
    message: str  # one line: what is wrong and what to do
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.code not in PROBLEM_CODES:
            raise ValueError(f"{self.code} is no code of an interface problem")


@dataclass(frozen=True)
class CrossKV:
    """Keys and values of another stream (an encoder's), read by one layer's attention and never appended to.

    Names of inputs; in a graph that makes them from the encoder's states, of outputs. None where only the other is one.
    """

    layer: int  # in the order of the attentions that read such caches
    key: str | None
    value: str | None


@dataclass(frozen=True)
class StatePair:
    """A state that each call takes and gives anew (recurrent, convolution, state space): no rows, so no rollback."""

    past: str
    present: str
    rank: int | None


@dataclass(frozen=True)
class Interface:
    """Names of a graph's inputs and outputs by their part in decoding. Found by dataflow, never by name."""

    input_ids: str | None
    attention_mask: str | None
    position_ids: str | None
    logits: str | None
    vocab_size: int | None
    kv: tuple[CachePair, ...] = ()  # in layer order; KVPair where complete
    cross_kv: tuple[CrossKV, ...] = ()
    states: tuple[StatePair, ...] = ()
    counters: tuple[str, ...] = ()  # integers that say how many rows of a cache count, or where new ones go
    others: tuple[str, ...] = ()  # inputs of no known part, in the graph's order
    problems: tuple[InterfaceProblem, ...] = ()  # the one to mend first comes first

    @classmethod
    def of(cls, contract: DecoderContract) -> Interface:
        """The interface of a decoder that is complete."""
        return cls(
            input_ids=contract.input_ids,
            attention_mask=contract.attention_mask,
            position_ids=contract.position_ids,
            logits=contract.logits,
            vocab_size=contract.vocab_size,
            kv=contract.kv,
        )

    @property
    def contract(self) -> DecoderContract:
        """What the runtime and the rewrites need. Raises ContractError, the first problem's line, where one is."""
        if self.problems:
            raise ContractError(self.problems[0].message)
        pairs = tuple(pair for pair in self.kv if isinstance(pair, KVPair))
        if self.input_ids is None or self.logits is None or self.vocab_size is None or len(pairs) < len(self.kv):
            raise ValueError("an incomplete interface names no problem")
        return DecoderContract(
            self.input_ids, self.attention_mask, self.position_ids, self.logits, pairs, self.vocab_size
        )
