"""What the walks found around one softmax, before it is known to be a site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx

from qbpass.admission.cache_ties import CacheTie, OtherStream
from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.facts import AttentionFacts, describe
from qbpass.admission.report import Diagnostic
from qbpass.admission.walks import ProductUse

UNTIED = -1  # the layer of an attention that belongs to no KV pair


@dataclass(frozen=True)
class Found:
    """A softmax between two products of activations. `softmax` may be the Div that ends a softmax spelled out."""

    softmax: onnx.NodeProto
    qk: onnx.NodeProto
    av: ProductUse
    key: CacheTie | None  # where the QK product's second operand comes from
    value: CacheTie | None  # where the AV product's second operand comes from
    flow: Flow
    other: OtherStream | None = None  # the other stream that keys come from, where they come from no cache of ours

    @property
    def layer(self) -> int:
        tie = self.key or self.value
        if tie is not None:
            return tie.pair.layer
        return UNTIED if self.other is None or self.other.layer is None else self.other.layer

    @property
    def name(self) -> str:
        """`attention.<layer>`, or the softmax's name where the attention belongs to no layer."""
        of = "attention" if self.other is None else "cross_attention"
        return f"{of}.{self.layer if self.layer != UNTIED else node_name(self.softmax)}"

    def facts(self) -> AttentionFacts:
        """What the walks found, whether or not it makes a site."""
        pair = tie.pair if (tie := self.key or self.value) is not None else None
        tensors = {
            "q": self.qk.input[0],
            "k": self.key.tensor if self.key is not None else self.qk.input[1],
            "v": self.value.tensor if self.value is not None else self.av.node.input[1],
            "past_key": pair and pair.past_key,
            "past_value": pair and pair.past_value,
            "present_key": pair and pair.present_key,
            "present_value": pair and pair.present_value,
            "output": self.av.node.output[0],
        }
        return describe(self.flow, tensors)

    def refuse(self, code: str, message: str, **more: Any) -> Diagnostic:
        """A diagnostic with the evidence that every refused finding carries, and `more`."""
        evidence = {
            "softmax": node_name(self.softmax),
            "qk": node_name(self.qk),
            "qk_operands": list(self.qk.input),
            "av": node_name(self.av.node),
            "av_operands": list(self.av.node.input),
            **more,
        }
        return Diagnostic(code, self.name, message, evidence)
