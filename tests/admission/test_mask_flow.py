"""What is added to the scores is a mask only if the dataflow says that it holds 0 and large negative numbers alone."""

from __future__ import annotations

import pytest
from graph_writer import GraphWriter
from onnx import TensorProto

from qbpass.admission.dataflow import Flow
from qbpass.admission.mask_flow import bias_source
from qbpass.models.contract import DecoderContract

CONTRACT = DecoderContract("input_ids", "attention_mask", None, "logits", (), 10)
LOWEST = -3.4028234663852886e38


def source_of(write: str) -> str | None:
    """Where the term written by `_TERMS[write]` stops being a mask; None if it is one."""
    writer = GraphWriter()
    writer.input("attention_mask", TensorProto.INT64, 1, "n")
    writer.input("allowed", TensorProto.BOOL, 1, 1, "q", "n")
    writer.input("number", TensorProto.FLOAT, 1, 1, "q", "n")
    return bias_source(_TERMS[write](writer), Flow(writer.model(), CONTRACT))


def numbers(writer: GraphWriter, *values: float) -> str:
    return writer.constant(list(values), "float32")


def where(writer: GraphWriter, kept: float = 0.0, masked: float = LOWEST, name: str = "where") -> str:
    return writer.node("Where", ["allowed", numbers(writer, kept), numbers(writer, masked)], name)


def gone(writer: GraphWriter) -> str:
    there = writer.node("Cast", ["attention_mask"], "there", to=TensorProto.FLOAT)
    return writer.node("Sub", [numbers(writer, 1.0), there], "gone")


def positions(writer: GraphWriter) -> str:
    return writer.node("CumSum", ["attention_mask", writer.constant(1)], "positions")


def scattered(writer: GraphWriter) -> str:
    """A mask written into zeros at the first key, as older exporters do it."""
    zeros = writer.node("Cast", [writer.node("Sub", ["attention_mask", "attention_mask"], "none")], "zeros", to=1)
    return writer.node("ScatterND", [zeros, writer.constant([[0, 0]]), numbers(writer, LOWEST)], "scattered")


_TERMS = {
    "constant": lambda w: numbers(w, 0.0, LOWEST, float("-inf")),
    "where": where,
    "where with the zero last": lambda w: where(w, kept=float("-inf"), masked=0.0),
    "expanded": lambda w: w.node("Expand", [where(w), w.constant([1, 1, 1, 1])], "wide"),
    "cast between floats": lambda w: w.node("Cast", [where(w)], "half", to=TensorProto.FLOAT16),
    "product with an indicator": lambda w: w.node("Mul", [gone(w), numbers(w, LOWEST)], "product"),
    "product the other way round": lambda w: w.node("Mul", [numbers(w, LOWEST), gone(w)], "product"),
    "sum of masks": lambda w: w.node("Add", [where(w), where(w, name="second")], "sum"),
    "triangle of a constant": lambda w: w.node("Trilu", [numbers(w, LOWEST)], "triangle", upper=1),
    "written into zeros at computed places": scattered,
    "small constant": lambda w: numbers(w, 0.0, -1.0),
    "small where": lambda w: where(w, masked=-100.0),
    "positive where": lambda w: where(w, kept=0.5),
    "graph input": lambda w: "number",
    "where over a number": lambda w: w.node("Where", ["allowed", "number", numbers(w, LOWEST)], "where"),
    "sum with a number": lambda w: w.node("Add", [where(w), "number"], "sum"),
    "product of a mask and a number": lambda w: w.node("Mul", [where(w), "number"], "product"),
    "distance to the last key": lambda w: w.node("Cast", [positions(w)], "distance", to=TensorProto.FLOAT),
    "the attention mask itself": lambda w: w.node("Cast", ["attention_mask"], "there", to=TensorProto.FLOAT),
    "tanh": lambda w: w.node("Tanh", [where(w)], "tanh"),
}


@pytest.mark.parametrize("write", list(_TERMS)[:10])
def test_zeros_and_large_negative_numbers_are_a_mask(write: str) -> None:
    assert source_of(write) is None


@pytest.mark.parametrize(
    ("write", "source"),
    [
        ("small constant", "c0"),
        ("small where", "c1"),
        ("positive where", "c0"),
        ("graph input", "number"),
        ("where over a number", "number"),
        ("sum with a number", "number"),
        ("product of a mask and a number", "product"),
        ("distance to the last key", "distance"),
        ("the attention mask itself", "there"),
        ("tanh", "tanh"),
    ],
)
def test_other_numbers_are_none_and_the_first_is_named(write: str, source: str) -> None:
    assert source_of(write) == source


def test_a_chain_too_long_to_follow_is_not_taken_for_a_mask() -> None:
    writer = GraphWriter()
    writer.input("allowed", TensorProto.BOOL, 1, 1, "q", "n")
    term = where(writer)
    for step in range(100):
        term = writer.node("Identity", [term], f"step{step}")
    assert bias_source(term, Flow(writer.model(), CONTRACT)) is not None
