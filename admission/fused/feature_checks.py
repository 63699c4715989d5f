"""What a layout would have to treat on its own in a fused operator, each under the code that decomposed sites have."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from qbpass.admission.checks import (
    dtype_query_key,
    gqa_ratio,
    quantized_kv,
    query_axis,
    sinks,
    softcap,
    streams,
    unknown_shape,
    value_dim,
)
from qbpass.admission.extents import QUERY_ROWS
from qbpass.admission.facts import dtype_name
from qbpass.admission.fused.subject import FusedSubject
from qbpass.admission.report import Diagnostic

# Parts whose types decide which kernel sums what.
_TYPED = (
    *("q", "k", "v", "packed_qkv", "packed_kv", "input", "weights", "past_key", "past_value", "past", "key_cache"),
    *("value_cache", "present_key", "present_value", "present", "attention_bias", "mask", "head_sink", "output"),
)
_CACHES = (
    *("past_key", "past_value", "past", "key_cache", "value_cache", "present_key", "present_value", "present"),
    *("key_cache_out", "value_cache_out"),
)


def check_shape(subject: FusedSubject) -> Diagnostic | None:
    """UNKNOWN_SHAPE: a head count or head dimension is neither an attribute nor a constant of the graph."""
    reading = subject.reading
    numbers = {name: getattr(reading, name) for name in ("heads", "kv_heads", "head_dim", "value_dim")}
    unknown = [name for name, value in numbers.items() if value is None]
    if not unknown:
        return None
    message = f"{', '.join(unknown)}: no constants of the graph; export with fixed head counts and dimensions"
    return subject.refuse(unknown_shape.CODE, message, **numbers, shapes=dict(subject.listed(*_TYPED)))


def check_ratio(subject: FusedSubject) -> Diagnostic | None:
    """GQA_RATIO: no whole number of query heads a KV head."""
    heads, kv_heads = subject.reading.heads, subject.kv_heads
    if heads is None or kv_heads is None or heads % kv_heads == 0:
        return None
    message = f"{heads} query heads can't share {kv_heads} KV heads evenly"
    return subject.refuse(gqa_ratio.CODE, message, heads=heads, kv_heads=kv_heads)


def check_value_dim(subject: FusedSubject) -> Diagnostic | None:
    """VALUE_DIM: values are not as wide as keys."""
    head_dim, values = subject.reading.head_dim, subject.reading.value_dim
    if head_dim is None or values is None or head_dim == values:
        return None
    message = f"values have {values} columns and keys {head_dim}; latent attention is not rewritten"
    return subject.refuse(value_dim.CODE, message, shapes=dict(subject.listed("q", "k", "v")))


def check_streams(subject: FusedSubject) -> Diagnostic | None:
    """STREAMS: a batch axis that is not 1 in calls of one stream."""
    batches = {}
    for part, axis in subject.reading.batch:
        shape = subject.flow.shape(subject.tensors[part]) if part in subject.tensors else None
        if shape is not None and axis < len(shape):
            batches[subject.tensors[part]] = shape[axis]
    if all(batch == 1 for batch in batches.values()):
        return None
    message = "the batch axis is not the constant 1, so several streams could be taken for several queries;"
    return subject.refuse(streams.CODE, f"{message} export with a fixed batch of 1", batch=batches)


def check_rows(subject: FusedSubject) -> Diagnostic | None:
    """QUERY_AXIS: the operator's rows are not the call's tokens."""
    reading, flow = subject.reading, subject.flow
    if reading.other_rows is not None:
        message = f"{subject.proto.op_type} {reading.other_rows}"
        return subject.refuse(query_axis.CODE, message, operator=subject.node.operator)
    part, axis = reading.rows or ("", 0)
    known = part in subject.tensors and flow.interface.input_ids is not None
    extent = flow.extent(subject.tensors[part], axis) if known else None
    if extent is None or extent == QUERY_ROWS:
        return None
    message = f"{part} has {extent} rows, not one for each token of {flow.interface.input_ids!r};"
    return subject.refuse(
        query_axis.CODE, f"{message} export with a dynamic sequence axis", shapes=dict(subject.listed(part))
    )


def check_types(subject: FusedSubject) -> Diagnostic | None:
    """DTYPE_QUERY_KEY: something other than float32 takes part. (A boolean mask does not.)"""
    types = _types(subject, _TYPED)
    known = {tensor: dtype_name(kind) for tensor, kind in types.items() if kind not in (0, TensorProto.BOOL)}
    if set(known.values()) <= {"float32"}:
        return None
    found = ", ".join(sorted(set(known.values())))
    message = f"Q, K, V, mask and caches are not all float32 ({found}); export in float32"
    return subject.refuse(dtype_query_key.CODE, message, types=known)


def check_quantized(subject: FusedSubject) -> Diagnostic | None:
    """QUANTIZED_KV: by attribute, or by the caches' type."""
    names = ("k_quant_type", "v_quant_type", "kv_cache_bit_width", "k_cache_dtype", "v_cache_dtype")
    evidence = {name: subject.reading.features[name] for name in names if name in subject.reading.features}
    for tensor, kind in _types(subject, _CACHES).items():
        if kind in quantized_kv.TYPES:
            evidence[tensor] = dtype_name(kind)
    if not evidence:
        return None
    return subject.refuse(quantized_kv.CODE, "the KV cache is quantized", **evidence)


def check_sinks(subject: FusedSubject) -> Diagnostic | None:
    """SINKS: the softmax's sum has a term of its own, learned (head_sink) or 1 (smooth_softmax)."""
    features = {name: on for name in ("head_sink", "smooth_softmax") if (on := subject.reading.features.get(name))}
    if not features:
        return None
    sink = subject.tensors.get("head_sink")
    message = f"the operator adds a term to the softmax's sum ({', '.join(features)})"
    return subject.refuse(sinks.CODE, message, **features, **({"tensor": sink} if sink else {}))


def check_softcap(subject: FusedSubject) -> Diagnostic | None:
    """SOFTCAP: softcap * Tanh(scores / softcap)."""
    cap = subject.reading.features.get("softcap")
    if not cap:
        return None
    return subject.refuse(softcap.CODE, f"the operator caps the scores by a Tanh (softcap {cap:g})", softcap=cap)


def _types(subject: FusedSubject, parts: Sequence[str]) -> dict[str, int]:
    """Tensor -> element type, for the parts that the operator has."""
    tensors = [subject.tensors[part] for part in parts if part in subject.tensors]
    return {tensor: subject.flow.elem_type(tensor) for tensor in tensors}
