"""What a decoder takes and gives, found by dataflow: exporters agree on no names."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from qbpass.models.contract import DecoderContract
from qbpass.models.dataflow import FLOATS, INTEGERS, Dataflow
from qbpass.models.errors import ContractError
from qbpass.models.kv_pairs import find_kv_pairs
from qbpass.models.logits import find_logits

_RESHAPING = frozenset({"Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Flatten"})
# From positions to angles: no comparison (that is a mask) and no CumSum (that is positions counted from a mask).
_ANGLES = _RESHAPING | {"Add", "Sub", "Mul", "Div", "Clip", "Transpose", "Concat", "MatMul", "Einsum", "Slice"}
_EMBEDS = frozenset({"Gather", "GatherND", "GatherBlockQuantized"})
# (domain, operator) -> operand number that takes positions
_POSITION_OPERANDS = {
    ("com.microsoft", "RotaryEmbedding"): 1,
    ("", "RotaryEmbedding"): 3,
    ("com.microsoft", "GroupQueryAttention"): 9,
}


def find_contract(model: onnx.ModelProto) -> DecoderContract:
    """The contract of a decoder with a KV cache.

    Raises ContractError, one line, where the graph has no KV inputs, no logits or only the last position's, a fixed
    number of tokens or batch rows, or an input that is none of token ids, mask, positions and KV cache.
    """
    flow = Dataflow(model.graph)
    kv = find_kv_pairs(flow)
    pasts = {name for pair in kv for name in (pair.past_key, pair.past_value)}
    rest = [name for name in flow.inputs if name not in pasts]
    for name in rest:
        if _is_states(flow, name):
            raise ContractError(_why_unknown(flow, name))
    presents = frozenset(name for pair in kv for name in (pair.present_key, pair.present_value))
    logits, vocabulary = find_logits(flow, presents)
    ids = _find_input_ids(flow, rest, vocabulary)
    rest.remove(ids)
    positions = [name for name in rest if _rank2(flow, name) and _is_positions(flow, name)]
    masks = [name for name in rest if name not in positions and _rank2(flow, name)]
    unknown = [name for name in rest if name not in positions[:1] and name not in masks[:1]]
    if unknown:
        raise ContractError(_why_unknown(flow, unknown[0]))
    _check_shapes(flow, ids, sorted(pasts))
    return DecoderContract(
        input_ids=ids,
        attention_mask=masks[0] if masks else None,
        position_ids=positions[0] if positions else None,
        logits=logits,
        kv=kv,
        vocab_size=vocabulary,
    )


def _find_input_ids(flow: Dataflow, names: list[str], vocabulary: int) -> str:
    """The integer input that picks rows of an embedding table; of several, the one whose table has a row a token."""
    rows = {name: table for name in names if flow.elem_type(name) in INTEGERS and (table := _table_rows(flow, name))}
    if not rows:
        raise ContractError(
            "no integer input picks rows of an embedding table: export the model with token ids (input_ids) as input"
        )
    return max(rows, key=lambda name: (rows[name] == vocabulary, rows[name]))


def _table_rows(flow: Dataflow, name: str) -> int | None:
    for node, operand in flow.forward(name, lambda n, _: n.op_type in _RESHAPING):
        if node.op_type in _EMBEDS and operand == 1:
            dims = flow.weight_dims(node.input[0])
            if dims is not None and len(dims) == 2:
                return dims[0]
    return None


def _is_positions(flow: Dataflow, name: str) -> bool:
    """An integer input that becomes angles (Cos, Sin, a rotary operator) or picks rows of a position table."""
    if flow.elem_type(name) not in INTEGERS:
        return False
    for node, operand in flow.forward(name, lambda n, _: n.op_type in _ANGLES):
        if node.op_type in ("Cos", "Sin") or _POSITION_OPERANDS.get((node.domain, node.op_type)) == operand:
            return True
        if node.op_type in _EMBEDS and operand == 1 and len(flow.weight_dims(node.input[0]) or ()) == 2:
            return True
    return False


def _rank2(flow: Dataflow, name: str) -> bool:
    shape = flow.shape(name)
    return (shape is None or len(shape) == 2) and flow.elem_type(name) in INTEGERS | FLOATS | {TensorProto.BOOL}


def _is_states(flow: Dataflow, name: str) -> bool:
    """Hidden states, a cross-attention cache or a ready-made mask: nothing that decoding from token ids feeds."""
    return flow.elem_type(name) in FLOATS and len(flow.shape(name) or ()) in (3, 4)


def _why_unknown(flow: Dataflow, name: str) -> str:
    if _is_states(flow, name):
        return (
            f"input {name!r} (float, rank {len(flow.shape(name) or [])}) is neither token ids, mask, positions nor a "
            "cache that is appended to: encoder-decoder models and models fed with embeddings or 4-D masks are not "
            "supported"
        )
    if any(
        node.op_type in ("Neg", "Slice", "Gather", "Range", "Sub") for node, _ in flow.forward(name, lambda *_: False)
    ):
        return (
            f"input {name!r} is neither token ids, mask, positions nor KV cache (it looks like a count of logits to "
            "keep): export the model with logits for all positions and without this input"
        )
    return f"input {name!r} is neither token ids, mask, positions nor KV cache: qbpass does not know what to feed it"


def _check_shapes(flow: Dataflow, ids: str, pasts: list[str]) -> None:
    for name in (ids, *pasts):
        batch = (flow.shape(name) or [None])[0]
        if isinstance(batch, int) and batch != 1:
            raise ContractError(
                f"input {name!r} has a fixed batch of {batch}: export the model with a batch of 1 or a dynamic one"
            )
    width = (flow.shape(ids) or [None, None])[-1]
    if isinstance(width, int):
        raise ContractError(
            f"input {ids!r} takes exactly {width} token(s) a call: export the model with a dynamic sequence length"
        )
    for name in pasts:
        past = (flow.shape(name) or [None] * 4)[2]
        if isinstance(past, int):
            raise ContractError(
                f"input {name!r} has a fixed past of {past} positions: export the model with a dynamic past length"
            )
