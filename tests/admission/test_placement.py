"""Placement is what a running session says of itself."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from qbpass.admission.placement import PlacedNode, Placement, observe_placement
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec

CPU = SessionSpec(threads=1)
HAS_OPENVINO = "OpenVINOExecutionProvider" in onnxruntime.get_available_providers()


def test_every_node_is_named_with_the_provider_that_was_given_it_and_that_ran_it(
    tiny_eager: Path, tmp_path: Path
) -> None:
    frozen = freeze(load_decoder(tiny_eager), tmp_path / "frozen", CPU)
    placement = observe_placement(frozen, CPU)
    assert placement.assigned is not None
    operators = sorted(node.op_type for node in frozen.model.graph.node)
    for nodes in (placement.assigned, placement.executed):
        assert sorted(node.operator for node in nodes) == operators
        assert {node.provider for node in nodes} == {"CPUExecutionProvider"}
    assert placement.elsewhere == ()
    assert placement.to_json()["assigned"]["CPUExecutionProvider"]["operators"]["Softmax"] == 3


def test_observing_leaves_no_profile_behind(tiny_eager: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    observe_placement(freeze(load_decoder(tiny_eager), tmp_path / "frozen", CPU), CPU)
    assert [path.name for path in tmp_path.iterdir()] == ["frozen"]


def test_a_node_on_another_provider_than_the_one_asked_for_is_named() -> None:
    here, there = PlacedNode("A", "MatMul", "", "m"), PlacedNode("B", "Softmax", "", "s")
    placement = Placement("A", (here, there), (here,))
    assert placement.elsewhere == (there,)
    assert placement.to_json()["elsewhere"] == [{"provider": "B", "operator": "Softmax", "domain": "", "name": "s"}]
    assert Placement("A", None, (here, there)).elsewhere == (there,)
    assert Placement("A", None, (here, there)).to_json()["assigned"] is None


@pytest.mark.skipif(not HAS_OPENVINO, reason="this ONNX Runtime lacks the OpenVINO provider")
def test_a_compiled_part_is_one_executed_node_of_many_assigned_ones(tiny_eager: Path, tmp_path: Path) -> None:
    spec = SessionSpec(provider="openvino", threads=1)
    frozen = freeze(load_decoder(tiny_eager), tmp_path / "frozen", spec)
    placement = observe_placement(frozen, spec)
    assert placement.assigned is not None
    assert len(placement.assigned) == len(frozen.model.graph.node)
    assert len(placement.executed) < len(placement.assigned)
    assert any(node.provider == "OpenVINOExecutionProvider" for node in placement.executed)
