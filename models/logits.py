"""Which output holds the logits, and whether it holds them for every position."""

from __future__ import annotations

from collections.abc import Container

import onnx

from qbpass.models.dataflow import CONTRACTIONS, FLOATS, Dataflow, int_attribute, ints_attribute
from qbpass.models.findings import Findings

_LAST_ONLY = (
    "gives logits for the last position only: verification needs a row for every token; export it with logits for all "
    "positions"
)
_SELECTS = frozenset({"Gather", "GatherND", "GatherElements", "Slice", "Compress"})
_GATHERS = frozenset({"Gather", "GatherND", "GatherElements", "GatherBlockQuantized"})
_NORMS = frozenset({"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"})
_BLOCK_ENDS = CONTRACTIONS | {"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"}


def find_logits(flow: Dataflow, others: Container[str], findings: Findings) -> tuple[str | None, int | None]:
    """(name, vocabulary size) of the logits (1, q, vocabulary); `others` are outputs of another part.

    NO_LOGITS, AMBIGUOUS_LOGITS, UNKNOWN_VOCABULARY and LAST_TOKEN_LOGITS go to `findings`.
    """
    candidates = [name for name in flow.outputs if name not in others and _may_be_logits(flow, name)]
    tables = embedding_rows(flow)
    named = {name: _vocabulary(flow, name) for name in candidates}
    if not candidates or (
        len(candidates) == 1 and named[candidates[0]] not in tables and not _has_head(flow, candidates[0])
    ):
        findings.add(
            "NO_LOGITS",
            "no output holds logits (float, shape (1, sequence, vocabulary)): export the model with its language-model "
            "head",
            outputs=list(flow.outputs)[:8],
        )
        return None, None
    matching = [name for name in candidates if named[name] in tables] if len(candidates) > 1 else candidates
    if len(matching) != 1:
        findings.add(
            "AMBIGUOUS_LOGITS",
            f"outputs {', '.join(map(repr, candidates))} could each be logits: export the model with one output "
            "besides the KV cache",
            *candidates,
        )
        return None, None
    name = matching[0]
    if named[name] is None:
        findings.add(
            "UNKNOWN_VOCABULARY",
            f"the vocabulary size of {name!r} is not in the graph: export it with a fixed last dimension",
            name,
        )
    cut = _cut(flow, name)
    if cut is not None:
        findings.add("LAST_TOKEN_LOGITS", f"{name!r} {_LAST_ONLY}", name, cut_by=cut)
    return name, named[name]


def _may_be_logits(flow: Dataflow, name: str) -> bool:
    shape = flow.shape(name)
    return flow.elem_type(name) in FLOATS and (shape is None or len(shape) in (2, 3))


def _vocabulary(flow: Dataflow, name: str) -> int | None:
    """From the output's shape, or from the head's weights."""
    last = (flow.shape(name) or [None])[-1]
    if isinstance(last, int):
        return last
    for node in flow.backward(name, lambda n: n.op_type not in CONTRACTIONS):
        if node.op_type in CONTRACTIONS:
            if int_attribute(node, "N"):
                return int_attribute(node, "N")
            dims = flow.weight_dims(node.input[1]) if len(node.input) > 1 else None
            if not dims:
                return None
            return dims[0] if int_attribute(node, "transB") else dims[-1]
    return None


def _has_head(flow: Dataflow, name: str) -> bool:
    """Whether `name` comes from a product with weights, rather than from a norm or a residual sum."""

    def enters(node: onnx.NodeProto) -> bool:
        return node.op_type not in _BLOCK_ENDS | _NORMS and not _joins_residual(flow, node)

    return any(node.op_type in CONTRACTIONS for node in flow.backward(name, enters))


def embedding_rows(flow: Dataflow) -> set[int]:
    """Row counts of the 2-D tables that some Gather reads."""
    tables = [flow.weight_dims(node.input[0]) for node in flow.graph.node if node.op_type in _GATHERS]
    return {dims[0] for dims in tables if dims is not None and len(dims) == 2}


def _cut(flow: Dataflow, name: str) -> str | None:
    """What cuts rows of earlier positions: "the declared shape", or the operator that does it. None where nothing does.

    A symbol named "1" is no cut: seq2seq exporters give it to the width that decoding has, and the graph takes more.
    """
    shape = flow.shape(name)
    if shape is not None and (len(shape) == 2 or shape[1] == 1):
        return "the declared shape"
    crossed_head = False

    def enters(node: onnx.NodeProto) -> bool:
        nonlocal crossed_head
        if node.op_type not in _BLOCK_ENDS:
            return not _joins_residual(flow, node)
        if crossed_head or node.op_type not in CONTRACTIONS:
            return False
        crossed_head = True
        return True

    for node in flow.backward(name, enters):
        if node.op_type in _SELECTS and _cuts_positions(flow, node):
            return f"{node.op_type} {node.output[0]!r}"
    return None


def _joins_residual(flow: Dataflow, node: onnx.NodeProto) -> bool:
    """An Add of two computed tensors: behind it lie the layers, where selecting rows is nobody's business here."""
    return node.op_type == "Add" and not any(flow.is_constant(operand) for operand in node.input)


def _cuts_positions(flow: Dataflow, node: onnx.NodeProto) -> bool:
    """Whether a selecting node on the way to the logits takes some positions (axis 1) and leaves others."""
    if flow.weight_dims(node.input[0]) is not None or _is_shape_arithmetic(flow, node):
        return False
    if node.op_type == "Gather":
        return (int_attribute(node, "axis") or 0) in (1, -2)
    if node.op_type in ("GatherND", "GatherElements", "Compress"):
        return True
    return _slices_positions(flow, node)


def _slices_positions(flow: Dataflow, node: onnx.NodeProto) -> bool:
    starts, ends, axes = (_slice_operand(flow, node, *names) for names in ((1, "starts"), (2, "ends"), (3, "axes")))
    if axes is None:
        if len(node.input) > 3 or starts is None:
            return True  # which axes are cut is not known before the call
        axes = list(range(len(starts)))
    at = next((i for i, axis in enumerate(axes) if axis in (1, -2)), None)
    if at is None:
        return False
    if starts is None or ends is None or min(len(starts), len(ends)) <= at:
        return True
    return not (starts[at] == 0 and ends[at] >= 2**31 - 1)


def _slice_operand(flow: Dataflow, node: onnx.NodeProto, operand: int, name: str) -> list[int] | None:
    """An operand of Slice where it is constant; an attribute before opset 10."""
    if len(node.input) == 1:
        return ints_attribute(node, name)
    value = flow.constant(node.input[operand]) if len(node.input) > operand and node.input[operand] else None
    return [int(v) for v in value.reshape(-1)] if value is not None and value.dtype.kind in "iu" else None


def _is_shape_arithmetic(flow: Dataflow, node: onnx.NodeProto) -> bool:
    return any(
        maker.op_type == "Shape" for maker in flow.backward(node.input[0], lambda n: n.op_type in ("Cast", "Identity"))
    )
