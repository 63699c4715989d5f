"""On a device no node runs elsewhere unseen. Placement is read off real sessions; who is given a node is made up here,
since this machine need not have a second provider.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from qbpass.admission.placement import PlacedNode, assigned_nodes
from qbpass.admission.probes.trial import RECORDING
from qbpass.admission.size_nodes import size_nodes
from qbpass.models.errors import ProviderError
from qbpass.models.session import SessionSpec, open_session
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime import placed_session
from qbpass.runtime.placed_session import check_placement, open_placed, stray_nodes

CPU = SessionSpec(threads=2)


@pytest.fixture(scope="module")
def model(tiny_bundle: Bundle) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(tiny_bundle.graph())


@pytest.fixture(scope="module")
def assigned(tiny_bundle: Bundle) -> tuple[PlacedNode, ...]:
    session = open_session(tiny_bundle.graph(), CPU, weights=tiny_bundle.weights, entries=RECORDING)
    nodes = assigned_nodes(session)
    assert nodes is not None
    return nodes


def _elsewhere(nodes: tuple[PlacedNode, ...], *operators: str) -> list[PlacedNode]:
    return [replace(node, provider="Device") if node.operator not in operators else node for node in nodes]


def test_nodes_inside_the_guards_branches_are_seen(assigned: tuple[PlacedNode, ...], model: onnx.ModelProto) -> None:
    inner = {node.name for guard in model.graph.node for part in guard.attribute for node in part.g.node}
    assert len(inner) > 10
    assert inner <= {node.name for node in assigned}


def test_arithmetic_on_sizes_may_be_left_to_the_cpu(assigned: tuple[PlacedNode, ...], model: onnx.ModelProto) -> None:
    assert {"Shape", "Range"} <= {node.operator for node in assigned}
    assert stray_nodes(_elsewhere(assigned, "Shape", "Range"), model, "Device") == []


@pytest.mark.parametrize("operator", ["MatMul", "FusedMatMul", "ScatterND", "Softmax", "Gather", "If"])
def test_any_other_node_left_to_the_cpu_is_an_error_that_names_it(
    assigned: tuple[PlacedNode, ...], model: onnx.ModelProto, operator: str
) -> None:
    with pytest.raises(
        ProviderError, match=rf"CPUExecutionProvider was given \d+ node\(s\) of a graph for Device \({operator} '"
    ):
        check_placement(_elsewhere(assigned, operator), model, "Device")


def test_weights_and_values_of_the_model_are_never_sizes() -> None:
    """A node of constants alone may be arithmetic on sizes only while the constants are small."""
    small = onnx.numpy_helper.from_array(np.ones(64, np.float32), "small")
    large = onnx.numpy_helper.from_array(np.ones(65, np.float32), "large")
    nodes = [
        onnx.helper.make_node("Neg", ["small"], ["a"], "of_small"),
        onnx.helper.make_node("Neg", ["large"], ["b"], "of_large"),
        onnx.helper.make_node("Neg", ["x"], ["c"], "of_input"),
        onnx.helper.make_node("Shape", ["c"], ["d"], "shape"),
        onnx.helper.make_node("Shape", ["c"], ["e"], "other_shape", domain="com.example"),
        onnx.helper.make_node("Add", ["d", "small"], ["f"], "of_shape"),
        onnx.helper.make_node("Add", ["d", "c"], ["g"], "of_both"),
    ]
    graph = onnx.helper.make_graph(nodes, "g", [], [], [small, large])
    assert size_nodes(graph) == {"of_small", "shape", "of_shape"}


def test_opening_for_a_device_reads_the_placement_and_refuses(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placed_session, "OF_DEVICES", frozenset({"cpu"}))
    assert open_placed(tiny_bundle.graph(), CPU, weights=tiny_bundle.weights).get_providers()
    assert open_placed(tiny_bundle.reference.path, CPU, weights=tiny_bundle.weights).get_providers()

    def moved(session: object) -> list[PlacedNode]:
        nodes = assigned_nodes(session)
        assert nodes is not None
        return [replace(node, provider="Other") if node.operator == "Softmax" else node for node in nodes]

    monkeypatch.setattr(placed_session, "assigned_nodes", moved)
    with pytest.raises(ProviderError, match=r"Other was given 3 node\(s\) .*Softmax"):
        open_placed(tiny_bundle.reference.path, CPU, weights=tiny_bundle.weights)
    monkeypatch.setattr(placed_session, "assigned_nodes", lambda session: None)
    with pytest.raises(ProviderError, match="does not say where nodes run"):
        open_placed(tiny_bundle.graph(), CPU, weights=tiny_bundle.weights)
