"""Which layer of the KV cache a fused operator belongs to, or which other stream it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import onnx

from qbpass.admission.cache_ties import CacheTies, OtherStream
from qbpass.admission.dataflow import Flow
from qbpass.admission.walks import WALK_LIMIT
from qbpass.models.contract import CachePair

PASTS = ("past_key", "past_value", "past", "key_cache", "value_cache")
PRESENTS = ("present_key", "present_value", "present", "key_cache_out", "value_cache_out")
_KEYS_AND_VALUES = ("k", "v", "packed_kv")

# Operators between a fused operator's cache and the graph's: stacking, splitting, another layout or type.
_LAYOUT = frozenset(
    {
        *("Identity", "Cast", "CastLike", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Concat"),
        *("Split", "Slice", "Gather", "QuantizeLinear", "DequantizeLinear"),
    }
)


@dataclass(frozen=True)
class FusedTie:
    """pair: the layer whose cache is read. other: the other stream, where keys come from no cache of ours.

    latent: the cached tensor that keys or values are projected from, where they are.
    """

    pair: CachePair | None = None
    other: OtherStream | None = None
    latent: str | None = None


class FusedTies:
    """Ties of one decoder's fused operators."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._walks = CacheTies(flow)
        self._pairs: dict[str, CachePair] = {}
        for pair in flow.interface.kv:
            for tensor in (pair.past_key, pair.past_value, pair.present_key, pair.present_value):
                if tensor:
                    self._pairs.setdefault(tensor, pair)

    def find(self, tensors: Mapping[str, str], renamed: Mapping[str, str]) -> FusedTie:
        """Of an operator with these tensors. renamed: results of a control-flow body -> the tensors they become."""
        pasts = [tensors[part] for part in PASTS if part in tensors]
        presents = [renamed.get(tensors[part], tensors[part]) for part in PRESENTS if part in tensors]
        pair = self._first(self._behind(pasts)) or self._first(self._before(presents))
        if pair is not None:
            return FusedTie(pair)
        operands = [tensors[part] for part in _KEYS_AND_VALUES if part in tensors]
        projected = next((tie for operand in operands if (tie := self._walks.find_projected(operand))), None)
        if projected is not None:
            return FusedTie(projected.pair, latent=projected.tensor)
        tie = next((tie for operand in operands if (tie := self._walks.find(operand))), None)
        if tie is not None:
            return FusedTie(tie.pair)
        other = self._walks.find_other_stream(operands[0]) if operands and not pasts else None
        return FusedTie(other=other)

    def _first(self, tensors: Iterable[str]) -> CachePair | None:
        return next((pair for tensor in tensors if (pair := self._pairs.get(tensor)) is not None), None)

    def _behind(self, tensors: list[str]) -> list[str]:
        """`tensors` and what they are laid out from, nearest first."""

        def reads(tensor: str) -> list[str]:
            node = self._flow.producer(tensor)
            return list(node.input) if node is not None and node.op_type in _LAYOUT else []

        return _reached(tensors, reads)

    def _before(self, tensors: list[str]) -> list[str]:
        """`tensors` and what is laid out from them, nearest first."""

        def made(tensor: str) -> list[str]:
            nodes: list[onnx.NodeProto] = self._flow.consumers(tensor)
            return [name for node in nodes if node.op_type in _LAYOUT for name in node.output]

        return _reached(tensors, made)


def _reached(tensors: list[str], step: Callable[[str], list[str]]) -> list[str]:
    order = list(dict.fromkeys(tensors))
    for tensor in order:
        if len(order) >= WALK_LIMIT:
            break
        order.extend(name for name in step(tensor) if name and name not in order)
    return order
