"""Logits for the rows that are asked for. A prompt needs its last row alone; the exported graph computes all of them.

The language-model head is a fifth of a small model's work and its logits are the largest tensor of a prefill: 200 KB a
row at a vocabulary of 50,000. Its rows may be left out only where one row computed alone is the row computed among
many, and whether that holds is tried on the head's own weights (`falsify_head`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper

from qbpass.models.decoder import Decoder
from qbpass.models.session import SessionSpec, open_session
from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.kv_cache import numpy_dtype
from qbpass.rewrites.row_repair.first_columns import columns_left_out, first_columns

#: Graph input, int64 of one element: the first row of the call whose logits are computed.
LOGITS_FROM = "qbpass.logits_from"

#: Numbers of rows the head is tried at: around the powers of two, where kernels change tiles, and between.
ROWS = (2, 3, 4, 5, 8, 13, 16, 17, 31, 33, 48, 64, 65, 100, 127, 128, 129, 200, 256, 257)


#: Products of rows and constant weights -> the operand that has the type of the rows.
_PRODUCTS = {("", "MatMul"): 1, ("com.microsoft", "MatMulNBits"): 2}


@dataclass(frozen=True)
class HeadWitness:
    """rows: how many were computed together; replay with numpy's default_rng(seed), in the order of ROWS."""

    rows: int
    seed: int
    max_abs_difference: float


def find_head(frozen: Decoder) -> onnx.NodeProto | None:
    """The product of hidden states (1, q, width) and constant weights that gives the logits, cast or not.

    None for another head than a MatMul or a MatMulNBits.
    """
    graph = frozen.model.graph
    weights = {tensor.name for tensor in graph.initializer}
    producers: dict[str, onnx.NodeProto] = {output: node for node in graph.node for output in node.output}
    node = producers.get(frozen.contract.logits)
    while node is not None and node.op_type == "Cast":
        node = producers.get(node.input[0])
    if node is None or (node.domain, node.op_type) not in _PRODUCTS:
        return None
    return node if all(name in weights for name in node.input[1:] if name) else None


def emit_logits_from(builder: NodeBuilder, graph: gs.Graph, logits: str) -> None:
    """Cut the head's input to the rows from LOGITS_FROM on; with 0 it is every row, as exported."""
    start = gs.Variable(LOGITS_FROM, dtype=np.int64, shape=[1])
    head = next(node for node in graph.nodes if any(output.name == logits for output in node.outputs))
    while head.op == "Cast":
        head = head.inputs[0].inputs[0]
    hidden = head.inputs[0]
    last = builder.ints(np.iinfo(np.int64).max)
    head.inputs[0] = builder.node("Slice", [hidden, start, last, builder.ints(1)], "head/rows", dtype=hidden.dtype)
    graph.inputs.append(start)


def falsify_head(frozen: Decoder, spec: SessionSpec, seed: int = 0) -> dict[str, Any]:
    """Whether the last row among many differs from the row alone, on random hidden states. Verdict false or unknown."""
    node = find_head(frozen)
    if node is None:
        return {"form": "all", "verdict": "unknown", "reason": "the logits are no product with constant weights"}
    if not _weights_are_here(frozen, node):
        return {"form": "all", "verdict": "unknown", "reason": "the head's weights are not here to be tried"}
    session = open_session(_head_model(frozen, node), spec, weights=frozen.weights)
    rng = np.random.default_rng(seed)
    width, dtype = session.get_inputs()[0].shape[-1], numpy_dtype(_hidden_type(frozen, node))
    for rows in ROWS:
        hidden = rng.standard_normal((1, rows, width), dtype=np.float32).astype(dtype)
        among = session.run(None, {"hidden": hidden})[0][:, -1:]
        alone = session.run(None, {"hidden": np.ascontiguousarray(hidden[:, -1:])})[0]
        if among.tobytes() != alone.tobytes():
            witness = HeadWitness(rows, seed, float(np.max(np.abs(among - alone))))
            return {"form": "all", "verdict": "false", "witness": asdict(witness)}
    left_out = columns_left_out([node])
    more = {"columns_left_out": left_out} if left_out else {}
    return {"form": "asked", "verdict": "unknown", "rows": list(ROWS), "seed": seed, **more}


def _constants(frozen: Decoder, node: onnx.NodeProto) -> dict[str, onnx.TensorProto]:
    """The head's weights, by name."""
    return {tensor.name: tensor for tensor in frozen.model.graph.initializer if tensor.name in node.input}


def _hidden_type(frozen: Decoder, node: onnx.NodeProto) -> int:
    """The element type of the rows: that of an operand which has it, too."""
    return _constants(frozen, node)[node.input[_PRODUCTS[node.domain, node.op_type]]].data_type


def _weights_are_here(frozen: Decoder, node: onnx.NodeProto) -> bool:
    """A graph may be planned for without its weights."""
    return all(frozen.weights.has(tensor) for tensor in _constants(frozen, node).values())


def _head_model(frozen: Decoder, node: onnx.NodeProto) -> bytes:
    """The head alone, its weights by the frozen graph's own reference; a very wide one's first columns."""
    constants, kind = _constants(frozen, node), _hidden_type(frozen, node)
    sizes = {attribute.name: attribute.i for attribute in node.attribute}
    width, columns = (sizes["K"], sizes["N"]) if "K" in sizes else constants[node.input[1]].dims
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    alone.input[0], alone.output[0] = "hidden", "logits"
    graph = helper.make_graph(
        [alone],
        "head",
        [helper.make_tensor_value_info("hidden", kind, [1, "rows", width])],
        [helper.make_tensor_value_info("logits", kind, [1, "rows", columns])],
        list(constants.values()),
    )
    model = helper.make_model(graph, opset_imports=frozen.model.opset_import, ir_version=frozen.model.ir_version)
    serialized: bytes = first_columns(model).SerializeToString()
    return serialized
