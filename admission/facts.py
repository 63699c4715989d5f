"""What is known of an attention, admitted or not: what a report names it by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import TensorProto

from qbpass.admission.dataflow import Flow, Shape


@dataclass(frozen=True)
class AttentionFacts:
    """Head counts, dimensions and scale; None where the graph does not say.

    tensors: part -> tensor name (q, k, v, mask, past_key, past_value, present_key, present_value, output, and what a
    fused operator takes besides). shapes and dtypes: by tensor name. features: what an operator's attributes turn on
    (softcap, local_window_size, do_rotary, ...), plain data.
    """

    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    value_dim: int | None
    scale: float | None
    tensors: Mapping[str, str]
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "value_dim": self.value_dim,
            "scale": self.scale,
            "tensors": {
                part: {
                    "name": name,
                    "shape": None if (shape := self.shapes.get(name)) is None else list(shape),
                    "dtype": self.dtypes.get(name),
                }
                for part, name in self.tensors.items()
            },
            "features": dict(self.features),
        }


def describe(flow: Flow, tensors: Mapping[str, str | None], **numbers: Any) -> AttentionFacts:
    """Facts of an attention whose tensors are these; `numbers` are AttentionFacts' other fields."""
    named = {part: name for part, name in tensors.items() if name}
    known = dict.fromkeys(("heads", "kv_heads", "head_dim", "value_dim", "scale"))
    return AttentionFacts(
        **{**known, **numbers},
        tensors=named,
        shapes={name: shape for name in named.values() if (shape := flow.shape(name)) is not None},
        dtypes={name: dtype_name(flow.elem_type(name)) for name in named.values() if flow.elem_type(name)},
    )


def dtype_name(elem_type: int) -> str:
    """`float32` for TensorProto.FLOAT; ONNX's own names in lower case for the rest."""
    name: str = TensorProto.DataType.Name(elem_type)
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(name, name.lower())
