"""A static graph computes nothing on the host that the device reads: what there is of that is split off, and refused
where it can't be.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from chain_models import FORMS, SPEC, chained
from onnx import TensorProto, helper

from qbpass.models.contract import DecoderContract
from qbpass.rewrites.apply import PAST_INPUT
from qbpass.rewrites.bundle import Bundle, plan_for
from qbpass.rewrites.refused import RewriteRefused
from qbpass.rewrites.static_graph import StaticGraph, split, static_graph

IDS = DecoderContract("ids", None, None, "logits", (), 8)


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, feeds)
    return found


def _model(nodes: list[onnx.NodeProto], **more: list[int]) -> onnx.ModelProto:
    """Of ids (1, q) and cache (n, 2), and the past; `logits` is its output."""
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "q"]),
        helper.make_tensor_value_info("cache", TensorProto.FLOAT, ["n", 2]),
        helper.make_tensor_value_info(PAST_INPUT, TensorProto.INT64, [1]),
    ]
    constants = [helper.make_tensor(name, TensorProto.INT64, [len(v)], v) for name, v in more.items()]
    output = [helper.make_tensor_value_info("logits", TensorProto.INT64, None)]
    graph = helper.make_graph(nodes, "g", inputs, output, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_what_the_device_reads_of_sizes_is_computed_before_the_call() -> None:
    nodes = [
        helper.make_node("Shape", ["cache"], ["shape"], start=0, end=1),
        helper.make_node("Add", ["shape", PAST_INPUT], ["sum"]),
        helper.make_node("Add", ["ids", "sum"], ["shifted"]),
        helper.make_node("Shape", ["ids"], ["of_ids"]),
        helper.make_node("Reshape", ["shifted", "of_ids"], ["logits"]),
    ]
    made = split(_model(nodes), IDS)
    assert made.fed == ("sum.fed",)
    assert made.shapes == {"cache": ("extent", 2)}
    assert made.takes_past
    assert made.host is not None
    (total,) = _run(made.host, {"cache.shape": np.array(made.shape("cache", 3, 40)), PAST_INPUT: np.array([7])})
    assert total.tolist() == [47]
    # The Shape that Reshape reads on the host stays; nothing else of sizes does.
    assert [node.op_type for node in made.device.graph.node] == ["Add", "Shape", "Reshape"]
    (logits,) = _run(made.device, {"ids": np.array([[1, 2]]), "sum.fed": total})
    assert logits.tolist() == [[48, 49]]


def test_a_size_that_changes_with_the_past_can_not_be_read_by_a_kernel_on_the_host() -> None:
    nodes = [helper.make_node("Slice", ["ids", "zero", PAST_INPUT, "one"], ["logits"])]
    with pytest.raises(RewriteRefused, match=r"Slice .* takes a size that changes in every call"):
        split(_model(nodes, zero=[0], one=[1]), IDS)


def test_control_flow_is_refused(tiny_bundle: Bundle) -> None:
    with pytest.raises(RewriteRefused, match="control flow"):
        split(onnx.ModelProto.FromString(tiny_bundle.graph()), tiny_bundle.reference.contract)


def test_rows_that_end_their_keys_by_slicing_have_no_static_graph(tiny_bundle: Bundle) -> None:
    with pytest.raises(RewriteRefused, match="layout pq ends each row's keys"):
        static_graph(tiny_bundle.reference, plan_for(tiny_bundle, "pq", SPEC))


@pytest.fixture(scope="module")
def graphs(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, StaticGraph]:
    chain = chained(tmp_path_factory.mktemp("chain"), FORMS["rows apart"])
    return {
        "qb": static_graph(tiny_bundle.reference, plan_for(tiny_bundle, "qb", SPEC)),
        "pq": static_graph(chain.reference, plan_for(chain, "pq", SPEC)),
    }


@pytest.mark.parametrize("layout", ["qb", "pq"])
def test_a_decoders_static_graph_has_one_cache_a_layer_and_no_phase(
    graphs: dict[str, StaticGraph], layout: str
) -> None:
    names = {value.name for value in graphs[layout].device.graph.input}
    assert not any("segment" in name or "phase" in name for name in names)
    assert set(graphs[layout].fed) <= names
    assert not any(node.op_type in ("If", "Loop", "Scan") for node in graphs[layout].device.graph.node)
    onnx.checker.check_model(graphs["qb"].host)


def test_masks_are_made_of_the_rows_a_call_writes_wherever_the_bucket_ends(
    graphs: dict[str, StaticGraph], tiny_bundle: Bundle
) -> None:
    """The causal mask that the host computes for 2 rows behind 5, in a bucket of 12."""
    graph = graphs["qb"]
    feeds = {f"{name}.shape": np.array(graph.shape(name, 2, 12)) for name in graph.shapes}
    found = dict(zip(graph.fed, _run(graph.host, feeds | {PAST_INPUT: np.array([5])}), strict=True))
    (mask,) = (array for array in found.values() if array.dtype == np.bool_)
    assert mask.reshape(2, 12).astype(int).tolist() == [[1] * 6 + [0] * 6, [1] * 7 + [0] * 5]
    assert found["qbpass/call/slots.fed"].ravel().tolist() == [5, 6]
