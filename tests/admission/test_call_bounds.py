"""Working a call out has bounds: what a file declares is none, and no node is run whose result may be large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graph_writer import GraphWriter
from onnx import TensorProto, helper

from qbpass.admission.calls import memory as calls_memory
from qbpass.admission.calls import node_values
from qbpass.admission.calls.call import CALLS
from qbpass.admission.calls.call_inputs import VALUE_LIMIT
from qbpass.admission.calls.memory import Memory
from qbpass.admission.calls.trace import CallTrace
from qbpass.models.interface import Interface

MASKED = Interface("input_ids", "attention_mask", "position_ids", "logits", None, ())


def traced(writer: GraphWriter) -> CallTrace:
    return CallTrace(writer.model(), MASKED, CALLS[0])


def test_what_a_file_declares_is_no_bound() -> None:
    """ONNX infers nothing of a Concat of two types, and its evaluator joins them."""
    writer = GraphWriter()
    large = writer.node("ConstantOfShape", [writer.constant([VALUE_LIMIT // 4])], "large")
    writer.node("Concat", [large] * 8 + [writer.constant([1.0], "float64")], "joined", axis=0)
    writer.declare("joined", TensorProto.FLOAT, 1)
    found = traced(writer)
    assert found.value("large") is not None
    assert found.value("joined") is None
    assert found.shape("joined") == (1,)


@pytest.mark.parametrize("size", [2**40, 2**62, -1])
def test_an_input_of_any_size_has_a_shape_and_no_value(size: int) -> None:
    writer = GraphWriter()
    writer.input("attention_mask", TensorProto.INT64, 1, size)
    writer.input("position_ids", TensorProto.INT64, 2**50, "rows")
    found = traced(writer)
    assert found.shape("attention_mask") == (1, size if size > 0 else None)
    assert found.value("attention_mask") is None
    assert found.value("position_ids") is None


@pytest.mark.parametrize("elem_type", [TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.BFLOAT16, 99])
def test_an_input_of_no_number_has_no_value(elem_type: int) -> None:
    writer = GraphWriter()
    writer.input("attention_mask", elem_type, 1, 4)
    assert traced(writer).value("attention_mask") is None


def test_text_has_no_value() -> None:
    writer = GraphWriter()
    writer.constants["text"] = helper.make_tensor("text", TensorProto.STRING, [1], [b"\xff"])
    writer.node("Constant", [], "words", value=helper.make_tensor("", TensorProto.STRING, [1], [b"\xff"]))
    writer.node("Cast", [writer.constant([1])], "cast", to=TensorProto.STRING)
    found = traced(writer)
    assert [found.value(name) for name in ("text", "words", "cast")] == [None] * 3
    assert found.shape("words") == (1,)


def test_a_size_that_is_no_number_of_64_bits_is_not_known() -> None:
    writer = GraphWriter()
    writer.input("huge", TensorProto.FLOAT, 2**40, 2**40)
    writer.node("Size", ["huge"], "size")
    assert traced(writer).value("size") is None


def test_no_tensor_is_read_from_where_the_process_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is one in the model's folder; onnx's evaluator knows no folder but the current one."""
    (tmp_path / "secret.bin").write_bytes(np.full(1, 7, np.float32).tobytes())
    monkeypatch.chdir(tmp_path)
    outside = TensorProto(data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="secret.bin")
    writer = GraphWriter()
    writer.node("ConstantOfShape", [writer.constant([2])], "filled", value=outside)
    writer.node("Constant", [], "constant", value=outside)
    found = traced(writer)
    assert found.value("filled") is None
    assert found.value("constant") is None
    assert found.shape("filled") == (2,)


def test_the_elements_of_nonzero_are_known_once_they_are_few() -> None:
    writer = GraphWriter()
    writer.node("NonZero", [writer.constant([0, 1, 1])], "few")
    writer.node("NonZero", [writer.constant(np.ones((64, 64)), "float32")], "some")
    found = traced(writer)
    assert np.array_equal(found.value("few"), [[1, 2]])
    assert found.shape("some") == (2, 4096)


def test_many_small_values_are_worked_out_until_their_cost_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_values, "TRACE_LIMIT", 400_000)
    writer = GraphWriter()
    name = writer.constant([1])
    for number in range(100):
        name = writer.node("Neg", [name], f"n{number}")
    found = traced(writer)
    assert found.value("n0") is not None
    assert found.value("n99") is None
    assert found.shape("n99") == (1,)


def test_nodes_of_many_kinds_are_worked_out_until_no_real_graph_has_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_memory, "INFERENCES", 3)
    writer = GraphWriter()
    writer.input("t0", TensorProto.FLOAT, 1, 4)
    writer.nodes.extend(chain(*({"alpha": float(k)} for k in range(5))))
    found = traced(writer)
    assert [found.shape(f"t{k}") for k in range(1, 6)] == [(1, 4)] * 3 + [None] * 2


def chain(*attributes: dict[str, Any]) -> list[onnx.NodeProto]:
    return [helper.make_node("LeakyRelu", [f"t{k}"], [f"t{k + 1}"], **a) for k, a in enumerate(attributes)]


def test_nodes_that_differ_in_names_only_are_worked_out_once() -> None:
    writer = GraphWriter()
    writer.input("t0", TensorProto.FLOAT, 1, 4)
    writer.nodes.extend(chain({}, {}, {"alpha": 2.0}, {}))
    memory = Memory()
    found = CallTrace(writer.model(), MASKED, CALLS[0], memory)
    assert found.shape("t4") == (1, 4)
    assert len(memory.types) == 2
