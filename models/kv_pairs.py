"""The KV cache in a graph's inputs and outputs: which past becomes which present, keys or values, of which layer."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from qbpass.models.contract import KVPair
from qbpass.models.dataflow import CONTRACTIONS, FLOATS, FUSED_ATTENTION, SHAPE_OPS, Dataflow, attribute
from qbpass.models.errors import ContractError

# (domain, operator) -> operand numbers of past key and past value, of key and value; the presents are outputs 1 and 2.
_FUSED_SLOTS = {
    ("com.microsoft", "GroupQueryAttention"): ((3, 4), (1, 2)),
    ("com.microsoft", "MultiHeadAttention"): ((6, 7), (1, 2)),
    ("", "Attention"): ((4, 5), (1, 2)),
    ("ai.onnx", "Attention"): ((4, 5), (1, 2)),
}
_STOPS = CONTRACTIONS | FUSED_ATTENTION | SHAPE_OPS | {"Softmax", "If", "Loop", "Scan"}


@dataclass(frozen=True)
class _Half:
    """One cache tensor: `at` is the node both halves of a layer meet in, a Softmax or a fused attention."""

    past: str
    present: str
    role: str  # "key" | "value"
    at: int


def find_kv_pairs(flow: Dataflow) -> tuple[KVPair, ...]:
    """KV pairs in layer order, by dataflow.

    1. A fused attention (GroupQueryAttention, MultiHeadAttention, Attention) with a graph input in its past slots and a
       graph output in its present slots.
    2. A rank-4 float input that is the first operand of a Concat on the next-to-last axis whose result is a graph
       output. It holds keys where it reaches a product whose result reaches a Softmax, values where it reaches a
       product with the result of a Softmax.

    Raises ContractError where there is none, or where a past has no key or value partner.
    """
    halves = [*_fused_halves(flow), *_concat_halves(flow)]
    if not halves:
        raise ContractError(_why_none(flow))
    layers: dict[int, dict[str, _Half]] = {}
    for half in halves:
        if len(flow.shape(half.past) or [None] * 4) != 4:
            raise ContractError(
                f"KV input {half.past!r} has {len(flow.shape(half.past) or [])} axes, not 4 (batch, KV heads, past, "
                "head dimension): export the model with one input for the keys and one for the values of each layer"
            )
        layer = layers.setdefault(half.at, {})
        if half.role in layer:
            raise ContractError(
                f"KV inputs {layer[half.role].past!r} and {half.past!r} are both the {half.role}s of one attention: "
                "qbpass can't tell which to feed"
            )
        layer[half.role] = half
    return tuple(_pair(flow, number, layers[at], at) for number, at in enumerate(sorted(layers)))


def _pair(flow: Dataflow, number: int, layer: dict[str, _Half], at: int) -> KVPair:
    if set(layer) != {"key", "value"}:
        half = next(iter(layer.values()))
        raise ContractError(
            f"KV input {half.past!r} ({half.role}s) has no partner in its attention: qbpass needs a key and a value "
            "input a layer"
        )
    key, value = layer["key"], layer["value"]
    value_dim = _head_dim(flow, value.past, at)
    return KVPair(
        layer=number,
        past_key=key.past,
        past_value=value.past,
        present_key=key.present,
        present_value=value.present,
        kv_heads=_kv_heads(flow, key.past, at),
        key_dim=_head_dim(flow, key.past, at),
        value_dim=value_dim,
        elem_type=flow.elem_type(key.past),
    )


def _kv_heads(flow: Dataflow, past: str, at: int) -> int:
    dim = (flow.shape(past) or [None] * 4)[1]
    if isinstance(dim, int):
        return dim
    node = flow.graph.node[at]
    heads = attribute(node, "kv_num_heads") or attribute(node, "num_heads")
    if not heads:
        raise ContractError(
            f"the number of KV heads of {past!r} is not in the graph: export it with a fixed number of heads"
        )
    return int(heads)


def _head_dim(flow: Dataflow, past: str, at: int) -> int:
    """From the input's own shape; a fused attention without one says it by the width its output projection takes."""
    dim = (flow.shape(past) or [None] * 4)[3]
    if isinstance(dim, int):
        return dim
    node = flow.graph.node[at]
    heads = attribute(node, "num_heads") or attribute(node, "q_num_heads")
    if node.op_type in FUSED_ATTENTION and heads:
        for reader, operand in flow.forward(node.output[0], lambda n, _: n.op_type not in _STOPS):
            width = _contracted_width(flow, reader) if operand == 0 and reader.op_type in CONTRACTIONS else None
            if width and width % int(heads) == 0:
                return width // int(heads)
    raise ContractError(f"the head dimension of {past!r} is not in the graph: export it with a fixed head dimension")


def _contracted_width(flow: Dataflow, node: onnx.NodeProto) -> int | None:
    if attribute(node, "K"):  # MatMulNBits, MatMulBnb4
        return int(attribute(node, "K"))
    dims = flow.weight_dims(node.input[1])
    if dims is None or len(dims) != 2:
        return None
    return dims[1] if attribute(node, "transB", 0) else dims[0]


def _fused_halves(flow: Dataflow) -> list[_Half]:
    found: list[_Half] = []
    for at, node in enumerate(flow.graph.node):
        slots = _FUSED_SLOTS.get((node.domain, node.op_type))
        for number, role in enumerate(("key", "value")) if slots else ():
            operand = slots[0][number]  # type: ignore[index]
            past = flow.source(node.input[operand]) if len(node.input) > operand else ""
            present = _as_output(flow, node.output[1 + number]) if len(node.output) > 1 + number else None
            if past in flow.inputs and present is not None:
                found.append(_Half(past, present, role, at))
    return found


def _concat_halves(flow: Dataflow) -> list[_Half]:
    found: list[_Half] = []
    for past in flow.inputs:
        if flow.elem_type(past) not in FLOATS or len(flow.shape(past) or ()) != 4:
            continue
        for node, operand in flow.forward(past, lambda n, _: n.op_type in ("Identity", "Cast")):
            if node.op_type != "Concat" or operand != 0 or attribute(node, "axis") not in (2, -2):
                continue
            present = _as_output(flow, node.output[0])
            if present is None:
                continue
            role = _role(flow, node.output[0])
            if role is None:
                raise ContractError(
                    f"KV input {past!r} is appended to but reaches no attention that qbpass can read: it is in neither "
                    "a QK nor an AV product"
                )
            found.append(_Half(past, present, *role))
    return found


def _as_output(flow: Dataflow, tensor: str) -> str | None:
    """The graph output that carries `tensor`, directly or through Identity or Cast."""
    if tensor in flow.outputs:
        return tensor
    for node, _ in flow.forward(tensor, lambda n, _: n.op_type in ("Identity", "Cast")):
        if node.op_type in ("Identity", "Cast") and node.output[0] in flow.outputs:
            return str(node.output[0])
    return None


def _role(flow: Dataflow, present: str) -> tuple[str, int] | None:
    """("key" | "value", the attention's Softmax or fused node) of a present; None where it reaches no attention."""
    for node, operand in flow.forward(present, lambda n, _: n.op_type not in _STOPS):
        slots = _FUSED_SLOTS.get((node.domain, node.op_type))
        if slots and operand in slots[1]:
            return ("key", "value")[slots[1].index(operand)], flow.position(node)
        if node.op_type not in CONTRACTIONS:
            continue
        other = node.input[1 - operand] if operand < 2 and len(node.input) > 1 else ""
        softmax = next((m for m in flow.backward(other, _passes) if m.op_type == "Softmax"), None)
        if softmax is not None:
            return "value", flow.position(softmax)
        for reader, _ in flow.forward(node.output[0], lambda n, _: n.op_type not in _STOPS):
            if reader.op_type == "Softmax":
                return "key", flow.position(reader)
    return None


def _passes(node: onnx.NodeProto) -> bool:
    return node.op_type not in _STOPS


def _why_none(flow: Dataflow) -> str:
    if any(node.op_type == "If" for node in flow.graph.node) and len(flow.graph.node) < 100:
        return (
            "this is a merged decoder (two decoders behind an If): export it unmerged, with past_key_values inputs "
            "(for example task text-generation-with-past)"
        )
    return "not a decoder with a KV cache: export it with past_key_values inputs"
