"""The dataflow answers for neighbourhoods, captures of control-flow bodies included."""

from __future__ import annotations

import networkx as nx
import onnx
import pytest
from onnx import TensorProto, helper
from site_graphs import Knobs, make_decoder

from qbpass.admission.dataflow import Flow, node_name
from qbpass.models.graph_order import node_reads


@pytest.fixture(scope="module")
def flow() -> Flow:
    return Flow.of(make_decoder(Knobs(layers=2, product="matmul", weights="nan_guard")))


def reference_between(flow: Flow, source: str, sink: str) -> set[str]:
    """The same question put to networkx, over the whole graph."""
    graph: nx.DiGraph = nx.DiGraph()
    for node in flow.nodes:
        graph.add_edges_from((tensor, ("node", node_name(node))) for tensor in node_reads(node))
        graph.add_edges_from((("node", node_name(node)), tensor) for tensor in node.output)
    both = nx.descendants(graph, source) & nx.ancestors(graph, sink)
    return {vertex[1] for vertex in both if isinstance(vertex, tuple)}


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        ("present.0.key", "l0.k_turned"),
        ("l0.qk", "l0.masked0"),
        ("input_ids", "logits"),
        ("attention_mask", "l1.softmax"),
        ("present.1.key", "l0.output"),
    ],
)
def test_between_is_what_lies_below_the_source_and_above_the_sink(flow: Flow, source: str, sink: str) -> None:
    found = [node_name(node) for node in flow.between(source, sink)]
    assert set(found) == reference_between(flow, source, sink)
    assert found == sorted(found, key=flow.position)


def test_weights_are_no_activations_and_what_is_made_from_inputs_is(flow: Flow) -> None:
    assert {"input_ids", "l0.q", "mask", "logits"} <= flow.activations
    assert not flow.activations & {tensor.name for tensor in flow.model.graph.initializer}


def test_a_reader_inside_a_control_flow_body_counts() -> None:
    decoder = make_decoder(Knobs())
    inner = helper.make_node("Identity", ["present.0.key"], ["copy"])
    body = helper.make_graph([inner], "b", [], [helper.make_tensor_value_info("copy", TensorProto.FLOAT, None)])
    condition = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    decoder.model.graph.initializer.append(condition)
    decoder.model.graph.node.append(helper.make_node("If", ["yes"], ["out"], then_branch=body, else_branch=body))
    readers = Flow.of(decoder).consumers("present.0.key")
    assert "If" in [node.op_type for node in readers]


def test_inference_sees_through_fused_products(flow: Flow) -> None:
    fused = Flow.of(make_decoder(Knobs()))
    assert fused.shape("l0.qk") == (1, 4, "queries", "past + queries")
    assert fused.elem_type("l0.softmax") == TensorProto.FLOAT
    assert fused.model.graph.node[0].op_type == flow.model.graph.node[0].op_type  # and leaves the graph as it was
    assert isinstance(fused.model, onnx.ModelProto)
