"""Whether a fused attention can be spelled out in separate operations (admission/lowering)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from qbpass.admission.calls.call import CALLS
from qbpass.admission.checks import fused_attention, fused_feature
from qbpass.admission.dataflow import node_name
from qbpass.admission.fused.subject import FusedSubject
from qbpass.admission.report import Diagnostic

_CACHES = frozenset({"past_key", "past_value", "present_key", "present_value", "output"})
#: Operands and results that a lowering writes, by kind; and the features it knows, those with codes of their own too.
_PARTS: Mapping[str, frozenset[str]] = {
    "onnx_attention": _CACHES | {"q", "k", "v", "mask"},
    "mha": _CACHES | {"q", "k", "v", "attention_bias"},
    "gqa": _CACHES
    | {"q", "k", "v", "packed_qkv", "seqlens_k", "total_sequence_length"}
    | {"cos_cache", "sin_cache", "position_ids", "attention_bias"},
}
_FEATURES: Mapping[str, frozenset[str]] = {
    "onnx_attention": frozenset(
        {"is_causal", "rank_3", "softcap", "softmax_precision", "left_window_size", "right_window_size"}
    ),
    "mha": frozenset({"unidirectional"}),
    "gqa": frozenset(
        {"causal", "packed_qkv", "do_rotary", "rotary_interleaved", "local_window_size", "softcap", "smooth_softmax"}
    ),
}


def lowerable(subject: FusedSubject) -> Diagnostic | None:
    """None where it can be. What has a code of its own (windows, caps, sinks, types, ..) is not looked at here."""
    if subject.kind not in _PARTS or _in_a_body(subject):
        return fused_attention.refuse(subject.proto, subject.name)
    found = dict(_features(subject))
    return fused_feature.refuse(subject.name, subject.node.operator, found) if found else None


def _in_a_body(subject: FusedSubject) -> bool:
    name = node_name(subject.proto)
    return subject.flow.position(name) < 0 or subject.flow.node(name) is not subject.proto


def _features(subject: FusedSubject) -> Iterator[tuple[str, Any]]:
    reading, kind = subject.reading, subject.kind
    yield from ((part, tensor) for part, tensor in reading.tensors.items() if part not in _PARTS[kind])
    yield from ((name, value) for name, value in reading.features.items() if name not in _FEATURES[kind])
    if reading.features.get("softmax_precision") not in (None, TensorProto.FLOAT):
        yield "softmax_precision", reading.features["softmax_precision"]
    if subject.node.count("q_num_heads") is None and reading.features.get("rank_3"):
        yield "q_num_heads", None
    if kind == "gqa":
        yield from _counts(subject)


def _counts(subject: FusedSubject) -> Iterator[tuple[str, Any]]:
    """What GroupQueryAttention counts keys by must be one stream's: n - 1 and n, in every call."""
    for part, less in (("seqlens_k", 1), ("total_sequence_length", 0)):
        tensor = subject.tensor(part)
        for call in CALLS:
            value = None if tensor is None else subject.flow.trace(call).value(tensor)
            if value is None or not np.array_equal(value.reshape(-1), [call.extent - less]):
                yield part, tensor
                break
    if not {"past_key", "past_value", "present_key", "present_value"} <= subject.reading.tensors.keys():
        yield "no_past", None
