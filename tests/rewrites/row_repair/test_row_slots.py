"""Slots hold every row of a call once and in order, in each phase, and a call with too many rows loses none."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx.reference import ReferenceEvaluator

from qbpass.admission.row_units.unit import RowUnit
from qbpass.models.session import SessionSpec, open_session
from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.guard import declare_phase, emit_condition
from qbpass.rewrites.phases import ALL_PHASES, Phase, guard_table
from qbpass.rewrites.row_repair.emit import emit_repairs
from qbpass.rewrites.row_repair.repair import REPAIR_SCOPE, RowRepair

WIDTH = 3
UNIT = RowUnit("scaled", ("offset", "scaled"), (("rows", 1), ("other", 0)), ("two",), (("scaled", 1),))
OTHER = RowUnit("turned", ("turned",), (("rows", 1),), (), (("turned", 1),))


def slotted(rows_per_call: int, max_queries: int, mask: int | None = 2) -> onnx.ModelProto:
    """scaled = 2 (rows + other) in slots, beside turned = -rows in slots. rows (1, q, 3), other (q, 3): float32; `ids`
    (1, q) tells the rows. mask None: no phase, the layout is active.
    """
    rows, other = gs.Variable("rows", np.float32, [1, "q", WIDTH]), gs.Variable("other", np.float32, ["q", WIDTH])
    offset = gs.Variable("offset", np.float32)
    outputs = [gs.Variable(name, np.float32, [1, "q", WIDTH]) for name in ("scaled", "turned")]
    nodes = [
        gs.Node("Add", inputs=[rows, other], outputs=[offset]),
        gs.Node("Mul", inputs=[offset, gs.Constant("two", np.array(2, np.float32))], outputs=[outputs[0]]),
        gs.Node("Neg", inputs=[rows], outputs=[outputs[1]]),
    ]
    queries, phase = gs.Variable("ids", np.int64, [1, "q"]), declare_phase()
    builder = NodeBuilder("qbpass/call")
    condition = None if mask is None else emit_condition(builder, phase, mask)
    graph = gs.Graph(nodes, [rows, other, queries, *([] if mask is None else [phase])], outputs, opset=20)
    producers = {output.name: node for node in nodes for output in node.outputs}
    repairs = (RowRepair("one", (UNIT,), rows_per_call), RowRepair("two", (OTHER,), rows_per_call))
    emit_repairs(builder, repairs, max_queries, producers, graph.tensors(), (queries, 1), condition)
    graph.nodes.extend(builder.nodes)
    model = gs.export_onnx(graph.cleanup().toposort(), do_type_check=False)
    model.ir_version = 10
    return model


def call(queries: int, phase: int | None = 2) -> dict[str, np.ndarray]:
    """Every element of every row is another number."""
    numbers = np.arange(queries * WIDTH, dtype=np.float32).reshape(queries, WIDTH)
    feeds = {"rows": numbers[None], "other": numbers * 100, "ids": np.zeros((1, queries), np.int64)}
    return feeds if phase is None else feeds | {"qbpass.phase": np.array(phase)}


def slot_sizes(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[int]:
    """How many rows each slot of the first unit runs for."""
    seen = onnx.ModelProto()
    seen.CopyFrom(model)
    made = [
        node.output[0]
        for node in model.graph.node
        if node.op_type == "Mul" and node.name.startswith(f"{REPAIR_SCOPE}/")
    ]
    del seen.graph.output[:]
    seen.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in made)
    by_name = dict(zip(made, ReferenceEvaluator(seen).run(None, feeds), strict=True))
    return [by_name[name].shape[1] for name in sorted(made)]


CASES = [(rows_per_call, queries) for rows_per_call in (1, 2, 3) for queries in (1, 2, 3, 4)]


@pytest.mark.parametrize(("rows_per_call", "queries"), CASES)
@pytest.mark.parametrize("phase", [None, *(int(phase) for phase in Phase)])
def test_every_row_is_computed_once_and_returns_to_its_place(
    rows_per_call: int, queries: int, phase: int | None
) -> None:
    model = slotted(rows_per_call, 4, None if phase is None else 2)
    feeds = call(queries, phase)
    scaled, turned = ReferenceEvaluator(model).run(None, feeds)
    assert scaled.tobytes() == (2 * (feeds["rows"] + feeds["other"])).tobytes()
    assert turned.tobytes() == (-feeds["rows"]).tobytes()


@pytest.mark.parametrize(("rows_per_call", "queries"), CASES)
def test_a_slot_holds_the_rows_its_phase_says(rows_per_call: int, queries: int) -> None:
    apart = [min(max(queries - start, 0), rows_per_call) for start in range(0, 4, rows_per_call)]
    together = [queries] + [0] * (len(apart) - 1)
    for mask in (2, 10):
        model = slotted(rows_per_call, 4, mask)
        for value in range(ALL_PHASES + 1):
            wanted = apart if guard_table(mask)[value] else together
            assert slot_sizes(model, call(queries, value)) == wanted
    assert slot_sizes(slotted(rows_per_call, 4, None), call(queries, None)) == apart


@pytest.mark.parametrize("queries", [1, 2, 4, 63])
def test_a_prompt_of_any_length_is_one_native_call(queries: int) -> None:
    feeds = call(queries, Phase.TARGET_PREFILL)
    session = open_session(slotted(1, 4).SerializeToString(), SessionSpec(threads=1))
    scaled, turned = session.run(None, feeds)
    assert scaled.tobytes() == (2 * (feeds["rows"] + feeds["other"])).tobytes()
    assert turned.tobytes() == (-feeds["rows"]).tobytes()


@pytest.mark.parametrize("max_queries", [1, 4])
def test_more_rows_than_slots_are_an_error_and_never_lost(max_queries: int) -> None:
    session = open_session(slotted(1, max_queries).SerializeToString(), SessionSpec(threads=1))
    session.run(None, call(max_queries))
    with pytest.raises(Exception, match="split"):
        session.run(None, call(max_queries + 1))


def test_a_tensor_that_several_operators_read_is_split_once() -> None:
    splits = [node for node in slotted(1, 4).graph.node if node.op_type == "Split"]
    assert sorted(node.input[0] for node in splits) == ["other", "rows"]
    assert len({node.input[1] for node in splits}) == 1, "sizes are computed once a call"
