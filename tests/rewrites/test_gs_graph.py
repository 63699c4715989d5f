"""GS holds the frozen decoder once, as the body of a Loop over rows, and no weight twice."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx
import pytest
from onnx import TensorProto, helper

from qbpass.models.decoder import Decoder
from qbpass.models.errors import ContractError
from qbpass.models.export import cached_export
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec
from qbpass.rewrites.apply import Emission
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.gs_graph import _rename, gs_graph, plan_gs
from qbpass.rewrites.guard import PHASE_INPUT
from qbpass.rewrites.planner import RewriteRefused


@pytest.fixture(scope="module", params=["eager", "onnx"])
def frozen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """Attention of separate products, and a fused operator that no layout of attention is planned for here."""
    folder = tmp_path_factory.mktemp("frozen") / "model"
    return freeze(load_decoder(cached_export("builtin:tiny", request.param)), folder, SessionSpec(threads=2))


def loop(model: onnx.ModelProto) -> onnx.NodeProto:
    (found,) = [node for node in model.graph.node if node.op_type == "Loop"]
    return found


def body(model: onnx.ModelProto) -> onnx.GraphProto:
    return next(attribute.g for attribute in loop(model).attribute if attribute.name == "body")


def every_node(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from every_node(attribute.g)


def gs(frozen: Decoder, mask: int = 2, emission: Emission = "guarded") -> onnx.ModelProto:
    return gs_graph(frozen, plan_gs(frozen, phase_mask=mask, prefill="one", max_queries=4), emission)


@pytest.mark.parametrize("emission", ["guarded", "active"])
def test_every_node_of_the_decoder_is_in_the_body_once_and_nothing_else_computes(
    frozen: Decoder, emission: Emission
) -> None:
    model = gs(frozen, emission=emission)
    exported = [node for node in every_node(model.graph) if not node.name.startswith("qbpass/")]
    assert [(n.op_type, n.name) for n in exported] == [(n.op_type, n.name) for n in frozen.model.graph.node]
    assert not [node for node in model.graph.node if not node.name.startswith("qbpass/")]
    added = {node.op_type for node in every_node(model.graph) if node.name.startswith("qbpass/")}
    assert added <= {"Shape", "Gather", "Where", "Identity", "Sub", "Mul", "Add", "Slice", "Loop", "Reshape"}


def test_weights_are_captured_by_the_body_and_copied_nowhere(frozen: Decoder) -> None:
    model = gs(frozen)
    assert not body(model).initializer
    own = [tensor for tensor in model.graph.initializer if not tensor.name.startswith("qbpass/")]
    assert own == list(frozen.model.graph.initializer)
    assert sum(tensor.ByteSize() for tensor in model.graph.initializer if tensor not in own) < 1024


def test_the_interface_is_the_decoders_own_and_the_phase(frozen: Decoder) -> None:
    before, after = frozen.model.graph, gs(frozen).graph
    assert [value.name for value in after.input] == [*(value.name for value in before.input), PHASE_INPUT]
    assert list(after.output) == list(before.output)
    assert [value.name for value in gs(frozen, emission="active").graph.input] == [v.name for v in before.input]


def test_the_native_graph_is_the_frozen_one(frozen: Decoder) -> None:
    assert gs(frozen, emission="native").graph == frozen.model.graph


@pytest.mark.parametrize("emission", ["guarded", "active"])
def test_what_is_written_passes_the_checker(frozen: Decoder, emission: Emission) -> None:
    model = gs(frozen, emission=emission)
    for tensor in model.graph.initializer:
        if tensor.external_data:  # the checker looks for the file; what is in it is nothing it checks
            del tensor.external_data[:]
            tensor.data_location = TensorProto.DEFAULT
            size = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
            tensor.raw_data = bytes(size * math.prod(tensor.dims))
    onnx.checker.check_model(model)


def test_every_emitted_node_says_its_layout_and_phases(frozen: Decoder) -> None:
    emitted = [node for node in every_node(gs(frozen).graph) if node.name.startswith("qbpass/")]
    assert len(emitted) > 10
    for node in emitted:
        assert {"qbpass.layout", "qbpass.phases"} <= {entry.key for entry in node.metadata_props}


def test_a_branch_that_captures_a_rows_input_is_given_the_rows_own() -> None:
    branch = helper.make_graph(
        [helper.make_node("Add", ["ids", "weights"], ["inside"])],
        "branch",
        [],
        [helper.make_tensor_value_info("inside", TensorProto.INT64, None)],
    )
    node = helper.make_node("If", ["condition"], ["result"], then_branch=branch, else_branch=branch)
    _rename(node, {"ids": "row/ids", "result": "row/result"})
    for attribute in node.attribute:
        assert list(attribute.g.node[0].input) == ["row/ids", "weights"]
    assert list(node.output) == ["row/result"]


def test_an_opset_without_the_operators_is_refused(tiny_bundle: Bundle) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(tiny_bundle.reference.model)
    for entry in model.opset_import:
        if entry.domain == "":
            entry.version = 12
    old = Decoder(tiny_bundle.reference.path, model, tiny_bundle.reference.interface, None, (), {})
    with pytest.raises(RewriteRefused, match="opset 12, and layout gs needs 13") as raised:
        plan_gs(old, phase_mask=2, prefill="whole", max_queries=4)
    assert "\n" not in str(raised.value)


def test_a_mask_that_the_reference_leaves_no_room_for_is_refused(tiny_bundle: Bundle) -> None:
    with pytest.raises(RewriteRefused, match="phase mask 3 rewrites prefill"):
        plan_gs(tiny_bundle.reference, phase_mask=3, prefill="whole", max_queries=4)


def test_an_incomplete_interface_is_refused(tiny_bundle: Bundle) -> None:
    from dataclasses import replace

    from qbpass.models.interface import InterfaceProblem

    reference = tiny_bundle.reference
    problem = InterfaceProblem("LAST_TOKEN_LOGITS", "logits are computed for the last position alone: export all")
    broken = replace(reference, interface=replace(reference.interface, problems=(problem,)))
    with pytest.raises(ContractError, match="for the last position alone"):
        plan_gs(broken, phase_mask=2, prefill="whole", max_queries=4)
