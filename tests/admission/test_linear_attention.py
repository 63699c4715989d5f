"""Operators that carry a state are found by name, read by their schemas and refused, each with its convolution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_writer import GraphWriter
from onnx import TensorProto

from qbpass.admission import admit
from qbpass.admission.report import SiteReport
from qbpass.models.decoder import Decoder
from qbpass.models.find_interface import find_interface

MICROSOFT = "com.microsoft"
WIDTH = 32


class StateGraph:
    """A decoder whose layers carry states instead of cached rows."""

    def __init__(self) -> None:
        self.writer = GraphWriter()
        self.writer.input("input_ids", TensorProto.INT64, 1, "queries")
        self.hidden = self.writer.node("Gather", [self.weight(16, WIDTH), "input_ids"], "embedding")

    def weight(self, *shape: int) -> str:
        return self.writer.constant(np.ones(shape), "float32")

    def state(self, name: str, *shape: int) -> str:
        return self.writer.input(name, TensorProto.FLOAT, *shape)

    def given(self, name: str, *shape: int) -> None:
        self.writer.nodes[-1].output.append(self.writer.output(name, TensorProto.FLOAT, *shape))

    def node(self, operator: str, inputs: list[str], name: str, domain: str = MICROSOFT, **attributes: Any) -> str:
        return self.writer.node(operator, inputs, name, domain=domain, **attributes)

    def reports(self, hidden: str, opset: int = 18) -> tuple[SiteReport, ...]:
        self.writer.node("MatMul", [hidden, self.weight(WIDTH, 16)], "logits")
        self.writer.output("logits", TensorProto.FLOAT, 1, "queries", 16)
        model = self.writer.model()
        model.opset_import[0].version = opset
        return admit(Decoder(Path("state.onnx"), model, find_interface(model))).sites


@pytest.mark.parametrize(("domain", "opset"), [(MICROSOFT, 18), ("", 27)])
def test_linear_attention_is_refused_with_its_heads_and_states(domain: str, opset: int) -> None:
    graph = StateGraph()
    inputs = [graph.hidden, graph.hidden, graph.hidden, graph.state("past", 1, 4, 8, 8)]
    options = {"q_num_heads": 4, "kv_num_heads": 4, "update_rule": "linear"}
    hidden = graph.node("LinearAttention", inputs, "linear", domain, **options)
    graph.given("present", 1, 4, 8, 8)
    (report,) = graph.reports(hidden, opset)
    assert (report.name, report.kind, report.layer) == ("linear_attention.linear", "linear_attention", -1)
    (diagnostic,) = report.diagnostics
    assert diagnostic.code == "LINEAR_ATTENTION"
    assert diagnostic.evidence["states"] == ["past", "present"]
    facts = report.facts
    assert facts is not None
    assert (facts.heads, facts.kv_heads, facts.head_dim, facts.value_dim) == (4, 4, 8, 8)
    assert facts.scale == pytest.approx(8**-0.5)
    assert facts.features == {"update_rule": "linear"}
    assert facts.shapes["linear"] == (1, "queries", 32)


def test_a_gated_delta_net_gives_its_heads_by_shape() -> None:
    graph = StateGraph()
    split = {
        part: graph.node("Reshape", [graph.hidden, graph.writer.constant([0, 0, heads, 32 // heads])], part, "")
        for part, heads in (("q", 2), ("k", 2), ("v", 4))
    }
    inputs = [*split.values(), "", "", "", graph.state("past", 1, 4, 8, 16)]
    hidden = graph.node("GatedDeltaNet", inputs, "delta", update_rule="linear")
    graph.given("present", 1, 4, 8, 16)
    flat = graph.node("Reshape", [hidden, graph.writer.constant([0, 0, 32])], "flat", "")
    (report,) = graph.reports(flat)
    facts = report.facts
    assert facts is not None
    assert (facts.heads, facts.kv_heads, facts.head_dim, facts.value_dim) == (2, 4, 16, 8)
    assert [diagnostic.code for diagnostic in report.diagnostics] == ["LINEAR_ATTENTION"]


def convolution(graph: StateGraph) -> str:
    turned = graph.node("Transpose", [graph.hidden], "turned", "", perm=[0, 2, 1])
    inputs = [turned, graph.weight(WIDTH, 1, 3), "", graph.state("past_rows", 1, WIDTH, 2)]
    rows = graph.node("CausalConvWithState", inputs, "convolution", activation="silu")
    graph.given("rows", 1, WIDTH, 2)
    return graph.node("Transpose", [rows], "turned_back", "", perm=[0, 2, 1])


def test_a_convolution_with_a_state_is_a_layer_of_its_own() -> None:
    graph = StateGraph()
    (report,) = graph.reports(convolution(graph))
    assert (report.name, report.kind) == ("linear_attention.convolution", "linear_attention")
    assert report.diagnostics[0].evidence["states"] == ["past_rows", "rows"]


def test_a_convolution_in_front_of_a_linear_attention_is_its_layers() -> None:
    graph = StateGraph()
    hidden = convolution(graph)
    inputs = [hidden, hidden, hidden, graph.state("past", 1, 4, 8, 8)]
    hidden = graph.node("LinearAttention", inputs, "linear", q_num_heads=4, kv_num_heads=4, update_rule="linear")
    graph.given("present", 1, 4, 8, 8)
    (report,) = graph.reports(hidden)
    assert report.name == "linear_attention.linear"
    assert set(report.diagnostics[0].evidence["states"]) == {"past", "present", "past_rows", "rows"}


def test_a_convolution_behind_a_projection_is_another_layers() -> None:
    graph = StateGraph()
    hidden = graph.node("MatMul", [convolution(graph), graph.weight(WIDTH, WIDTH)], "projected", "")
    inputs = [hidden, hidden, hidden, graph.state("past", 1, 4, 8, 8)]
    hidden = graph.node("LinearAttention", inputs, "linear", q_num_heads=4, kv_num_heads=4, update_rule="linear")
    graph.given("present", 1, 4, 8, 8)
    names = [report.name for report in graph.reports(hidden)]
    assert names == ["linear_attention.convolution", "linear_attention.linear"]


def test_a_damaged_node_is_refused_and_not_raised_for() -> None:
    graph = StateGraph()
    hidden = graph.node("GatedDeltaNet", [graph.hidden], "delta")
    (report,) = graph.reports(hidden)
    assert [diagnostic.code for diagnostic in report.diagnostics] == ["LINEAR_ATTENTION"]
