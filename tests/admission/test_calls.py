"""A call is traced over sizes alone: shapes, and the values of what depends on sizes, positions and a mask of ones."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graph_writer import GraphWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from site_graphs import Knobs, make_decoder

from qbpass.admission.calls.call import CALLS, Call
from qbpass.admission.calls.node_values import VALUE_LIMIT
from qbpass.admission.calls.trace import CallTrace
from qbpass.admission.dataflow import Flow
from qbpass.admission.mask_values import allowed_keys
from qbpass.models.interface import Interface
from qbpass.models.session import SessionSpec, open_session

INTERFACE = Interface("input_ids", "attention_mask", None, "logits", 16)


def trace(writer: GraphWriter, call: Call = CALLS[0]) -> CallTrace:
    writer.input("input_ids", TensorProto.INT64, "batch", "rows")
    writer.input("attention_mask", TensorProto.INT64, "batch", "total")
    return CallTrace(writer.model(), INTERFACE, call)


@settings(max_examples=20, deadline=None)
@given(
    queries=st.integers(1, 9),
    past=st.integers(0, 40),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    product=st.sampled_from(["fused", "matmul"]),
)
def test_every_traced_shape_is_what_onnxruntime_computes(
    queries: int, past: int, kv_heads: int, group: int, product: str
) -> None:
    decoder = make_decoder(Knobs(heads=kv_heads * group, kv_heads=kv_heads, product=product, weights="nan_guard"))
    traced = CallTrace(decoder.model, decoder.interface, Call(queries, past))
    model = onnx.ModelProto()
    model.CopyFrom(decoder.model)
    made = [name for node in model.graph.node for name in node.output if name]
    del model.graph.output[:]
    model.graph.output.extend(
        helper.make_tensor_value_info(name, traced.elem_type(name), [None] * len(traced.shape(name) or ()))
        for name in made
    )
    pair = decoder.contract.kv[0]
    cache = np.zeros((1, kv_heads, past, 8), np.float32)
    feeds = {
        "input_ids": np.zeros((1, queries), np.int64),
        "attention_mask": np.ones((1, past + queries), np.int64),
        pair.past_key: cache,
        pair.past_value: cache,
    }
    values = open_session(model.SerializeToString(), SessionSpec(threads=1)).run(made, feeds)
    for name, value in zip(made, values, strict=True):
        assert traced.shape(name) == value.shape, name
        known = traced.value(name)
        assert known is None or known.tobytes() == value.astype(known.dtype).tobytes(), name


@pytest.mark.parametrize("call", CALLS)
def test_a_causal_mask_leaves_each_query_the_keys_up_to_its_own(call: Call) -> None:
    allowed = allowed_keys(["mask"], Flow.of(make_decoder(Knobs())), call)
    wanted = np.arange(call.extent)[None] <= np.arange(call.past, call.extent)[:, None]
    assert allowed is not None
    assert allowed.tobytes() == wanted.tobytes()


def test_a_declared_shape_counts_only_where_nothing_computes_it() -> None:
    writer = GraphWriter()
    writer.node("Cast", ["input_ids"], "computed", to=TensorProto.FLOAT)
    writer.node("Mystery", ["computed"], "declared", domain="elsewhere")
    writer.declare("computed", TensorProto.FLOAT, 7, 7, 7)
    writer.declare("declared", TensorProto.FLOAT16, "batch", "rows", 5)
    found = trace(writer)
    assert found.shape("computed") == (1, 2)
    assert found.shape("declared") == (1, 2, 5)
    assert found.elem_type("declared") == TensorProto.FLOAT16


def test_a_symbol_of_no_known_part_is_no_constant_and_no_number_of_rows() -> None:
    writer = GraphWriter()
    writer.input("encoder", TensorProto.FLOAT, 1, "source", 8)
    writer.node("Identity", ["encoder"], "copy")
    writer.input("input_ids", TensorProto.INT64, 1, "rows")
    writer.input("attention_mask", TensorProto.INT64, 1, "total")
    assert Flow(writer.model(), INTERFACE).shape("copy") == (1, "source", 8)


def test_nothing_larger_than_the_limit_is_worked_out() -> None:
    writer = GraphWriter()
    for name, size in (("small", 10), ("large", VALUE_LIMIT + 1), ("absurd", 10**15)):
        writer.node("ConstantOfShape", [writer.constant([size])], name)
    found = trace(writer)
    assert found.value("small") is not None
    assert found.value("large") is None
    assert found.shape("large") == (VALUE_LIMIT + 1,)
    assert found.value("absurd") is None


def test_a_weight_is_not_looked_at_and_a_product_not_computed() -> None:
    writer = GraphWriter()
    table = writer.constant(np.ones((16, 4)), "float32")
    writer.node("Gather", [table, "input_ids"], "embedding")
    writer.node("MatMul", ["embedding", writer.constant(np.ones((4, 3)), "float32")], "product")
    found = trace(writer)
    assert found.shape("product") == (1, 2, 3)
    assert found.value("embedding") is None
    assert found.value("product") is None
