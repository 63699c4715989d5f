"""What a check of a fused operator looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx

from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.facts import AttentionFacts, describe
from qbpass.admission.found import UNTIED
from qbpass.admission.fused.fused_node import FusedNode
from qbpass.admission.fused.fused_ties import FusedTie
from qbpass.admission.fused.operators import LINEAR
from qbpass.admission.fused.reading import Reading
from qbpass.admission.report import Diagnostic

# A fused operator with one of these parts appends the new rows itself.
_OWN_CACHE = frozenset({"past", "present", "past_key", "present_key", "key_cache"})
_NUMBERS = ("heads", "kv_heads", "head_dim", "value_dim", "scale")


@dataclass(frozen=True)
class FusedSubject:
    """One fused operator: its node, what its reader found, and the layer or the other stream it is tied to."""

    node: FusedNode
    kind: str
    reading: Reading
    tie: FusedTie

    @property
    def flow(self) -> Flow:
        return self.node.flow

    @property
    def layer(self) -> int:
        if self.tie.pair is not None:
            return self.tie.pair.layer
        other = self.tie.other
        return UNTIED if other is None or other.layer is None else other.layer

    @property
    def name(self) -> str:
        """`attention.<layer>`, `cross_attention.<layer>`, or the node's name where it belongs to no layer."""
        of = "attention" if self.tie.other is None else "cross_attention"
        of = of if self.kind != LINEAR else "linear_attention"
        return f"{of}.{self.layer if self.layer != UNTIED else node_name(self.node.node)}"

    @property
    def kv_heads(self) -> int | None:
        """The cache's, where each of its heads is repeated before the operator reads it."""
        own, pair = self.reading.kv_heads, self.tie.pair
        repeated = self.joined_outside and self.tie.latent is None and pair is not None and pair.kv_heads is not None
        return pair.kv_heads if repeated and pair is not None else own

    @property
    def joined_outside(self) -> bool:
        """Whether the past meets the new rows before the operator, not in it."""
        return self.tie.pair is not None and not _OWN_CACHE & self.reading.tensors.keys()

    @cached_property
    def tensors(self) -> dict[str, str]:
        """Part -> tensor: the operator's own, and the cache's where it is joined outside."""
        pair = self.tie.pair
        found = dict(self.reading.tensors)
        if pair is not None and self.joined_outside:
            for part in ("past_key", "past_value", "present_key", "present_value"):
                if name := getattr(pair, part):
                    found[part] = name
        return found

    def tensor(self, part: str | None) -> str | None:
        return None if part is None else self.tensors.get(part)

    def facts(self) -> AttentionFacts:
        numbers = {name: getattr(self.reading, name) for name in _NUMBERS}
        features = dict(self.reading.features)
        if self.kv_heads != self.reading.kv_heads:
            features["kv_heads_read"] = self.reading.kv_heads  # of the cache's, each repeated before the operator
        return describe(self.flow, self.tensors, **{**numbers, "kv_heads": self.kv_heads}, features=features)

    def refuse(self, code: str, message: str, **evidence: Any) -> Diagnostic:
        return Diagnostic(code, self.name, message, dict(evidence))

    def listed(self, *parts: str) -> Mapping[str, list[int | str | None] | None]:
        """Shapes, by tensor, in a form that JSON holds."""
        tensors = [self.tensors[part] for part in parts if part in self.tensors]
        return {tensor: None if (s := self.flow.shape(tensor)) is None else list(s) for tensor in tensors}

    @property
    def proto(self) -> onnx.NodeProto:
        return self.node.node
