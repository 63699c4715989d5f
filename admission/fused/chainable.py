"""Whether a fused operator can be evaluated as a chain of one-query operators over one shared cache.

Evaluated alone, a query's operator reads its own row, the cache as it stands, and two lengths. So nothing inside the
operator has to be known: windows, soft caps and sinks stay what they are. What has to be shown is that its operands are
the call's rows, the layer's own cache and those lengths, and nothing else that depends on how many rows there are.

Source: onnxruntime/contrib_ops/cpu/bert/group_query_attention.cc (schemas and kernels of ONNX Runtime 1.24 to 1.32).
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from qbpass.admission.calls.call import CALLS
from qbpass.admission.dataflow import Flow
from qbpass.admission.fused.subject import FusedSubject
from qbpass.admission.fused_site import FusedSite
from qbpass.models.contract import CachePair

# Diagnostics that speak of what a layout of separate products would have to treat: a chain leaves it to the operator.
# What is added to the scores may be any numbers, and may hide what it likes: its row and its columns are cut out.
OPENED_ONLY = frozenset({"FUSED_ATTENTION", "SLIDING_WINDOW", "SOFTCAP", "SINKS", "BIAS_NOT_MASK", "DTYPE_QUERY_KEY"})

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_Q, _K, _V, _POSITIONS, _BIAS = 0, 1, 2, 9, 10
_NOT_CHAINED = ("k_scale", "v_scale", "query_seqlens", "output_qk")


def chain_site(subject: FusedSubject, codes: frozenset[str]) -> FusedSite | None:
    """The site, or None where a chain could not be shown to read what the operator reads.

    codes: what admission says of the operator.
    """
    pair, tensors, reading = subject.tie.pair, subject.tensors, subject.reading
    if subject.kind != "gqa" or not codes <= OPENED_ONLY or not reading.causal or pair is None:
        return None
    if any(part in tensors for part in _NOT_CHAINED) or reading.features.get("sliding_window_cache"):
        return None
    if not _owns_its_cache(subject, pair) or not _lengths_are_the_calls(subject):
        return None
    numbers = (reading.heads, reading.kv_heads, reading.head_dim, reading.value_dim)
    kind = subject.flow.elem_type(tensors["past_key"])
    if None in numbers or kind not in _FLOATS or {pair.kv_heads, reading.kv_heads} != {reading.kv_heads}:
        return None
    heads, kv_heads, head_dim, value_dim = (int(number) for number in numbers if number is not None)
    row_axes = _row_axes(subject)
    if row_axes is None:
        return None
    return FusedSite(
        name=subject.name,
        kind=subject.kind,
        layer=subject.layer,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        elem_type=kind,
        node=tensors["output"],
        operator=subject.node.operator,
        output=tensors["output"],
        past_key=tensors["past_key"],
        past_value=tensors["past_value"],
        present_key=tensors["present_key"],
        present_value=tensors["present_value"],
        seqlens_k=tensors["seqlens_k"],
        total=tensors["total_sequence_length"],
        row_axes=row_axes,
        key_axes={_BIAS: 3} if "attention_bias" in tensors else {},
    )


def _owns_its_cache(subject: FusedSubject, pair: CachePair) -> bool:
    """The graph's own past and present, directly, and nobody else's."""
    tensors, flow = subject.tensors, subject.flow
    parts = ("past_key", "past_value", "present_key", "present_value")
    if any(tensors.get(part) != getattr(pair, part) for part in parts):
        return False
    if subject.proto.output[0] not in _made_in_the_graph(flow):
        return False  # in a control-flow body
    pasts = [tensors["past_key"], tensors["past_value"]]
    presents = [tensors["present_key"], tensors["present_value"]]
    read_once = all(len(flow.consumers(tensor)) == 1 for tensor in pasts)
    return read_once and not any(flow.consumers(tensor) for tensor in presents) and len({*pasts, *presents}) == 4


def _made_in_the_graph(flow: Flow) -> set[str]:
    return {output for node in flow.nodes for output in node.output}


def _lengths_are_the_calls(subject: FusedSubject) -> bool:
    """seqlens_k is n - 1 and total_sequence_length n in every call looked at."""
    lengths = {"seqlens_k": 1, "total_sequence_length": 0}
    for part, short_of in lengths.items():
        tensor = subject.tensors.get(part)
        if tensor is None:
            return False
        for call in CALLS:
            value = subject.flow.trace(call).value(tensor)
            if value is None or value.size != 1 or int(np.ravel(value)[0]) != call.extent - short_of:
                return False
    return True


def _row_axes(subject: FusedSubject) -> dict[int, int] | None:
    """Operand place -> the axis that holds the call's rows; None where one has no such axis."""
    flow, proto = subject.flow, subject.proto
    wanted = {_Q: 1, _K: 1, _V: 1, _POSITIONS: 1, _BIAS: 2}
    axes = {place: axis for place, axis in wanted.items() if place < len(proto.input) and proto.input[place]}
    for place, axis in axes.items():
        for call in CALLS:
            shape = flow.trace(call).shape(proto.input[place])
            if shape is None or len(shape) <= axis or shape[axis] != call.queries:
                return None
            if place == _BIAS and (len(shape) != 4 or shape[3] != call.extent):
                return None
    return axes
