"""Which output holds the logits, and whether it holds them for every position."""

from __future__ import annotations

import onnx

from qbpass.models.dataflow import CONTRACTIONS, FLOATS, Dataflow, attribute
from qbpass.models.errors import ContractError

_LAST_ONLY = (
    "gives logits for the last position only: verification needs a row for every token; export it with logits for all "
    "positions"
)
_SELECTS = frozenset({"Gather", "GatherND", "GatherElements", "Slice", "Compress"})
_BLOCK_ENDS = CONTRACTIONS | {"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"}


def find_logits(flow: Dataflow, presents: frozenset[str]) -> tuple[str, int]:
    """(name, vocabulary size) of the logits (1, q, vocabulary).

    Raises ContractError where no output can be logits, where two could be, or where rows of earlier positions are cut.
    """
    candidates = [name for name in flow.outputs if name not in presents and _may_be_logits(flow, name)]
    if not candidates:
        raise ContractError(
            "no output holds logits (float, shape (1, sequence, vocabulary)): export the model with its language-model "
            "head"
        )
    tables = _embedding_rows(flow)
    named = {name: _vocabulary(flow, name) for name in candidates}
    matching = [name for name in candidates if named[name] in tables] if len(candidates) > 1 else candidates
    if len(matching) != 1:
        raise ContractError(
            f"outputs {', '.join(map(repr, candidates))} could each be logits: export the model with one output "
            "besides the KV cache"
        )
    name = matching[0]
    vocabulary = named[name]
    if vocabulary is None:
        raise ContractError(
            f"the vocabulary size of {name!r} is not in the graph: export it with a fixed last dimension"
        )
    _check_every_position(flow, name)
    return name, vocabulary


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
            if attribute(node, "N"):
                return int(attribute(node, "N"))
            dims = flow.weight_dims(node.input[1]) or [None, None]  # type: ignore[list-item]
            return dims[0] if attribute(node, "transB", 0) else dims[-1]
    return None


def _embedding_rows(flow: Dataflow) -> set[int]:
    """Row counts of the 2-D tables that some Gather reads."""
    tables = [flow.weight_dims(node.input[0]) for node in flow.graph.node if node.op_type.startswith("Gather")]
    return {dims[0] for dims in tables if dims is not None and len(dims) == 2}


def _check_every_position(flow: Dataflow, name: str) -> None:
    shape = flow.shape(name)
    # Some exporters write the constant 1 as a symbol named "1".
    if shape is not None and (len(shape) == 2 or shape[1] in (1, "1")):
        raise ContractError(f"{name!r} {_LAST_ONLY}")
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
            raise ContractError(f"{name!r} {_LAST_ONLY}")


def _joins_residual(flow: Dataflow, node: onnx.NodeProto) -> bool:
    """An Add of two computed tensors: behind it lie the layers, where selecting rows is nobody's business here."""
    return node.op_type == "Add" and not any(flow.is_constant(operand) for operand in node.input)


def _cuts_positions(flow: Dataflow, node: onnx.NodeProto) -> bool:
    """Whether a selecting node on the way to the logits takes some positions (axis 1) and leaves others."""
    if flow.weight_dims(node.input[0]) is not None or _is_shape_arithmetic(flow, node):
        return False
    if node.op_type == "Gather":
        return attribute(node, "axis", 0) in (1, -2)
    if node.op_type in ("GatherND", "GatherElements", "Compress"):
        return True
    starts, ends, axes = (flow.constant(node.input[i]) if len(node.input) > i else None for i in (1, 2, 3))
    if len(node.input) > 3 and axes is not None:
        numbers = [int(axis) for axis in axes.reshape(-1)]
        if not any(axis in (1, -2) for axis in numbers):
            return False
        at = next(i for i, axis in enumerate(numbers) if axis in (1, -2))
        if starts is not None and ends is not None:
            return not (int(starts.reshape(-1)[at]) == 0 and int(ends.reshape(-1)[at]) >= 2**31 - 1)
    return True


def _is_shape_arithmetic(flow: Dataflow, node: onnx.NodeProto) -> bool:
    return any(
        maker.op_type == "Shape" for maker in flow.backward(node.input[0], lambda n: n.op_type in ("Cast", "Identity"))
    )
