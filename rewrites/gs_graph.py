"""GS: the rows of a call one at a time through the whole decoder, as a graph.

The frozen decoder's own nodes are the body of a Loop. Its trips are the call's rows; the KV cache is carried from trip
to trip, so a row reads what serial decoding would have cached before it. Weights stay outside the body, which captures
them: none is copied. Where the layout is not active the Loop runs once, over all rows, which is the exported decoder:
trips and width are data, and no node is there twice.

The body looks at the phase nowhere. It works for any decoder with a complete contract, whatever its attention, for it
changes no node: what it costs is that every weight is read once a row.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qbpass.models.contract import DecoderContract
from qbpass.models.decoder import Decoder
from qbpass.models.graph_order import subgraphs
from qbpass.rewrites.guard import PHASE_INPUT
from qbpass.rewrites.phases import guard_table, mask_problem
from qbpass.rewrites.plan import RewritePlan
from qbpass.rewrites.planner import RewriteRefused
from qbpass.rewrites.tags import tag_nodes

#: What the graph's own operators need: Slice's axes and Loop's captured tensors as they are since this opset.
LEAST_OPSET = 13

SCOPE = "qbpass/gs"


def plan_gs(frozen: Decoder, *, phase_mask: int, prefill: str, max_queries: int) -> RewritePlan:
    """A plan without sites: rows are run alone, so no attention has to be admitted.

    Raises ContractError where the decoder's interface is incomplete, RewriteRefused where its opset is too old or the
    mask one that this reference leaves no room for (phases.py).
    """
    opset = next((entry.version for entry in frozen.model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < LEAST_OPSET:
        raise RewriteRefused(
            f"the graph is of opset {opset}, and layout gs needs {LEAST_OPSET}: export the model again"
        )
    problem = mask_problem(phase_mask, prefill)
    if problem is not None:
        raise RewriteRefused(problem)
    frozen.interface.contract  # noqa: B018  raises where the interface is incomplete
    evidence = {"form": "all", "verdict": "unknown", "reason": "every row is evaluated by the exported decoder itself"}
    return RewritePlan("gs", phase_mask, max_queries, (), "all", evidence)


def gs_graph(
    frozen: Decoder, plan: RewritePlan, emission: Literal["guarded", "active", "native"] = "guarded"
) -> onnx.ModelProto:
    """The decoder's own inputs and outputs, and in a guarded graph the phase. native: the frozen graph as it is."""
    model = onnx.ModelProto()
    model.CopyFrom(frozen.model)
    model.ir_version = max(model.ir_version, 10)  # node metadata came with IR 10
    if emission != "native":
        _wrap(model.graph, frozen.contract, plan.phase_mask if emission == "guarded" else None)
        tag_nodes(model, plan, emission)
    return model


def _wrap(graph: onnx.GraphProto, contract: DecoderContract, mask: int | None) -> None:
    pasts = [name for pair in contract.kv for name in (pair.past_key, pair.past_value)]
    presents = [name for pair in contract.kv for name in (pair.present_key, pair.present_value)]
    rows = [name for name in (contract.input_ids, contract.attention_mask, contract.position_ids) if name is not None]
    inner = {name: f"{SCOPE}/row/{name}" for name in (*rows, *pasts, *presents, contract.logits)}
    body_nodes = _row_inputs(contract, inner)
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        _rename(copy, inner)
        body_nodes.append(copy)
    body_nodes.append(helper.make_node("Identity", [f"{SCOPE}/going"], [f"{SCOPE}/goes_on"], f"{SCOPE}/goes_on"))
    declared = {value.name: value.type for value in (*graph.input, *graph.output)}
    body = helper.make_graph(
        body_nodes,
        f"{SCOPE}/row",
        [
            helper.make_tensor_value_info(f"{SCOPE}/trip", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"{SCOPE}/going", TensorProto.BOOL, []),
            *(_typed(inner[name], declared[name]) for name in pasts),
        ],
        [
            helper.make_tensor_value_info(f"{SCOPE}/goes_on", TensorProto.BOOL, []),
            *(_typed(inner[name], declared[name]) for name in presents),
            _typed(inner[contract.logits], declared[contract.logits]),
        ],
    )
    nodes, constants = _outside(contract, body, pasts, presents, mask)
    del graph.node[:]
    del graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(constants)
    if mask is not None:
        graph.input.append(helper.make_tensor_value_info(PHASE_INPUT, TensorProto.INT64, []))


def _outside(
    contract: DecoderContract, body: onnx.GraphProto, pasts: list[str], presents: list[str], mask: int | None
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Trips and width of the call, the Loop, and its logits (trips, 1, width, vocabulary) as (1, q, vocabulary)."""
    ints = {"zero": [0], "one": [1], "all": [1, -1, contract.vocab_size]}
    constants = [numpy_helper.from_array(np.array(v, np.int64), f"{SCOPE}/{name}") for name, v in ints.items()]
    constants.append(numpy_helper.from_array(np.array(True), f"{SCOPE}/true"))
    nodes: list[onnx.NodeProto] = []

    def node(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"{SCOPE}/{output}"], f"{SCOPE}/{output}", **attributes))
        return f"{SCOPE}/{output}"

    one = f"{SCOPE}/one"
    queries = node("Gather", [node("Shape", [contract.input_ids], "shape"), one], "queries", axis=0)
    trips, width = queries, one
    if mask is not None:
        constants.append(numpy_helper.from_array(np.array(guard_table(mask)), f"{SCOPE}/table"))
        active = node("Gather", [f"{SCOPE}/table", PHASE_INPUT], "active", axis=0)
        trips = node("Where", [active, queries, one], "trips")
        width = node("Where", [active, one, queries], "width")
    node("Identity", [width], "rows_a_trip")
    if contract.attention_mask is not None:
        extent = node("Gather", [node("Shape", [contract.attention_mask], "mask_shape"), one], "extent", axis=0)
        node("Sub", [extent, queries], "past")
    stacked = f"{SCOPE}/stacked"
    nodes.append(
        helper.make_node("Loop", [trips, f"{SCOPE}/true", *pasts], [*presents, stacked], f"{SCOPE}/rows", body=body)
    )
    nodes.append(helper.make_node("Reshape", [stacked, f"{SCOPE}/all"], [contract.logits], f"{SCOPE}/logits"))
    return nodes, constants


def _row_inputs(contract: DecoderContract, inner: dict[str, str]) -> list[onnx.NodeProto]:
    """The trip's columns of ids and positions, and the mask up to the last of them."""
    first, last = f"{SCOPE}/first", f"{SCOPE}/last"
    nodes = [
        helper.make_node("Mul", [f"{SCOPE}/trip", f"{SCOPE}/rows_a_trip"], [first], first),
        helper.make_node("Add", [first, f"{SCOPE}/rows_a_trip"], [last], last),
    ]
    one, zero = f"{SCOPE}/one", f"{SCOPE}/zero"
    for name in filter(None, (contract.input_ids, contract.position_ids)):
        nodes.append(helper.make_node("Slice", [name, first, last, one], [inner[name]], inner[name]))
    if contract.attention_mask is not None:
        end, name = f"{SCOPE}/end", contract.attention_mask
        nodes.append(helper.make_node("Add", [f"{SCOPE}/past", last], [end], end))
        nodes.append(helper.make_node("Slice", [name, zero, end, one], [inner[name]], inner[name]))
    return nodes


def _rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Every mention of a tensor, also where a branch of the node captures it."""
    for field in (node.input, node.output):
        for index, name in enumerate(field):
            field[index] = names.get(name, name)
    for graph in subgraphs(node):
        for value in graph.output:
            value.name = names.get(value.name, value.name)
        for inside in graph.node:
            _rename(inside, names)


def _typed(name: str, declared: onnx.TypeProto) -> onnx.ValueInfoProto:
    """Without a shape: lengths change from trip to trip."""
    return helper.make_tensor_value_info(name, declared.tensor_type.elem_type, None)
