"""Placement is what a running session says of itself."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
from probe_cases import small_decoder

from qbpass.admission.placement import PlacedNode, Placement, observe_placement
from qbpass.models.decoder import Decoder
from qbpass.models.freeze import freeze
from qbpass.models.session import SessionSpec

CPU = SessionSpec(threads=1)
HAS_OPENVINO = "OpenVINOExecutionProvider" in onnxruntime.get_available_providers()


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    return small_decoder(tmp_path / "model")


def test_every_node_is_named_with_the_provider_that_was_given_it_and_that_ran_it(decoder: Decoder) -> None:
    placement = observe_placement(decoder, CPU)
    assert placement.assigned is not None
    for nodes in (placement.assigned, placement.executed):
        assert sorted(node.operator for node in nodes) == ["Gather", "IsNaN", "MatMul"]
        assert {node.provider for node in nodes} == {"CPUExecutionProvider"}
    assert placement.elsewhere == ()
    assert placement.to_json()["assigned"]["CPUExecutionProvider"] == {
        "nodes": 3,
        "operators": {"Gather": 1, "MatMul": 1, "IsNaN": 1},
    }


def test_observing_leaves_no_profile_behind(decoder: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    observe_placement(decoder, CPU)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_node_on_another_provider_than_the_one_asked_for_is_named() -> None:
    here, there = PlacedNode("A", "MatMul", "", "m"), PlacedNode("B", "Softmax", "", "s")
    placement = Placement("A", (here, there), (here,))
    assert placement.elsewhere == (there,)
    assert placement.to_json()["elsewhere"] == [{"provider": "B", "operator": "Softmax", "domain": "", "name": "s"}]
    assert Placement("A", None, (here, there)).elsewhere == (there,)
    assert Placement("A", None, (here, there)).to_json()["assigned"] is None


@pytest.mark.skipif(not HAS_OPENVINO, reason="this ONNX Runtime lacks the OpenVINO provider")
def test_what_openvino_compiles_and_what_it_leaves_to_the_cpu_is_told_apart(decoder: Decoder, tmp_path: Path) -> None:
    spec = SessionSpec(provider="openvino", threads=1)
    placement = observe_placement(freeze(decoder, tmp_path / "frozen", spec), spec)
    assert placement.assigned is not None
    assert len(placement.assigned) == 3
    assert {node.operator for node in placement.elsewhere} == {"IsNaN"}
    assert {node.provider for node in placement.elsewhere} == {"CPUExecutionProvider"}
    compiled = [node for node in placement.executed if node.provider == "OpenVINOExecutionProvider"]
    assert len(compiled) == 1  # of two assigned nodes
