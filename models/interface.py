"""What any decoder's graph takes and gives, complete or not, and why qbpass can't run it where it is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qbpass.models.contract import CachePair, DecoderContract, KVPair
from qbpass.models.errors import ContractError


@dataclass(frozen=True)
class InterfaceProblem:
    """One reason why a graph can't be run as a decoder. Codes are append-only: a code never changes its meaning."""

    code: str
    message: str  # one line: what is wrong and what to do
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CrossKV:
    """Keys and values of another stream (an encoder's), read by one layer's attention and never appended to.

    None where only the other of the two is an input.
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
