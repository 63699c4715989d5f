"""Quantized decoders: what a trial falsifies is repaired, nothing else is, and every row is then the serial one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from decoder_blocks import SPEC, block_target, random_tokens, replayed, serial_target
from quantized_exports import dynamic, flow_and_attention, operators, weight_only, written

from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.bundle import Bundle, open_bundle, plan_for
from qbpass.rewrites.plan import RewritePlan
from qbpass.rewrites.row_repair.falsify import RowWitness, row_differs
from qbpass.runtime.block_target import BlockTarget

FORMATS: dict[str, Callable[[Path, Path], Path]] = {
    "int4 block 128 level 4": lambda export, folder: weight_only(export, folder, 4, 128, 4),
    "int4 block 32 level 4": lambda export, folder: weight_only(export, folder, 4, 32, 4),
    "int4 block 32 level 0": lambda export, folder: weight_only(export, folder, 4, 32, 0),
    "int8 block 64 level 4": lambda export, folder: weight_only(export, folder, 8, 64, 4),
    "dynamic": dynamic,
}

Made = tuple[Bundle, RewritePlan]


@pytest.fixture(scope="module", params=FORMATS)
def made(request: pytest.FixtureRequest, tiny_sdpa: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("row_repair")
    return written(FORMATS[request.param](tiny_sdpa, folder / "model"), folder / "bundle")


@pytest.fixture(scope="module")
def made_dynamic(tiny_sdpa: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One scale for all rows: its rows depend on each other on every machine."""
    folder = tmp_path_factory.mktemp("row_repair_dynamic")
    return written(dynamic(tiny_sdpa, folder / "model"), folder / "bundle")


def test_every_width_at_every_alignment_equals_serial_decoding(made: Made) -> None:
    bundle, _ = made
    count = replayed(bundle, BlockTarget.from_bundle(bundle, SPEC))
    assert count.equal == count.rows == 13 * (1 + 2 + 3 + 4)


def test_what_is_repaired_is_what_a_trial_falsified(made: Made) -> None:
    _, plan = made
    false = {label for label, kind in plan.repair_evidence.items() if kind["verdict"] == "false"}
    assert {repair.kind for repair in plan.repairs} == false
    assert not any(repair.forced for repair in plan.repairs)
    for label, kind in plan.repair_evidence.items():
        assert kind["verdict"] == ("unknown" if kind["trials"][0]["witness"] is None else "false")
        if label in false:
            assert kind["trials"][-1]["witness"] is None, "the repaired form was tried, too"
            assert len(kind["tried_on"]) == min(2, kind["nodes"])


def test_every_witness_is_found_again(made: Made) -> None:
    bundle, plan = made
    flow, _ = flow_and_attention(bundle)
    units = {unit.seed: unit for repair in plan.repairs for unit in repair.units}
    for repair in plan.repairs:
        found = RowWitness(**plan.repair_evidence[repair.kind]["trials"][0]["witness"])
        assert row_differs(bundle.reference, flow, units[found.node], plan.max_queries, found, SPEC)


def test_an_operator_stands_once_a_slot_if_repaired_and_once_if_not(made: Made) -> None:
    bundle, plan = made
    repaired = {name for repair in plan.repairs for unit in repair.units for name in unit.nodes}
    for operator in ("MatMulNBits", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"):
        exported = operators(bundle, operator, "reference.onnx")
        times = sum(plan.max_queries if node.output[0] in repaired else 1 for node in exported)
        assert len(operators(bundle, operator)) == times


def test_weights_are_shared_by_the_slots(made: Made) -> None:
    bundle, _ = made
    graphs = [onnx.load(str(bundle.folder / name), load_external_data=False).graph for name in bundle.manifest.files]
    stored = [{t.name for t in graph.initializer if not t.name.startswith("qbpass/")} for graph in graphs]
    assert stored[0] <= stored[1] or stored[1] <= stored[0]


@pytest.mark.parametrize("length", [1, 3, 9, 70])
def test_the_prompts_one_call_is_the_references(made: Made, length: int) -> None:
    bundle, _ = made
    target, reference = BlockTarget.from_bundle(bundle, SPEC), serial_target(bundle)
    prompt = random_tokens(bundle, length, 3)
    rows = []
    for each in (target, reference):
        each.start(length + 1)
        rows.append(each.prefill(prompt)[-1].tobytes())
    assert rows[0] == rows[1]
    for index in range(2 * len(bundle.reference.contract.kv)):
        assert target.cached(index).tobytes() == reference.cached(index).tobytes()


def test_repairs_and_evidence_come_back_from_the_manifest(made: Made) -> None:
    bundle, plan = made
    manifest = open_bundle(bundle.folder).manifest
    assert [(r.kind, r.nodes, r.rows_per_call, r.forced) for r in manifest.repairs] == [
        (r.kind, tuple(unit.seed for unit in r.units), r.rows_per_call, r.forced) for r in plan.repairs
    ]
    assert manifest.repair_evidence == plan.repair_evidence


def test_one_scale_for_all_rows_is_always_falsified_and_repaired(made_dynamic: Made) -> None:
    bundle, plan = made_dynamic
    seeds = {unit.seed for repair in plan.repairs for unit in repair.units}
    scaled = [
        node.output[0]
        for operator in ("DynamicQuantizeLinear", "DynamicQuantizeMatMul")
        for node in operators(bundle, operator, "reference.onnx")
    ]
    assert scaled
    assert set(scaled) <= seeds


def test_without_one_of_its_repairs_a_model_is_found_to_differ(made_dynamic: Made) -> None:
    """The forced replay can fail: each repair that is left out costs rows."""
    bundle, plan = made_dynamic
    for left_out in range(len(plan.repairs)):
        kept = tuple(repair for place, repair in enumerate(plan.repairs) if place != left_out)
        count = replayed(bundle, block_target(bundle, replace(plan, repairs=kept)))
        assert count.equal < count.rows


def test_two_rows_a_call_are_not_one_row_a_call(made_dynamic: Made) -> None:
    bundle, plan = made_dynamic
    wide = tuple(replace(repair, rows_per_call=2) for repair in plan.repairs)
    count = replayed(bundle, block_target(bundle, replace(plan, repairs=wide)))
    assert count.equal < count.rows


def test_slots_in_another_order_are_found(made_dynamic: Made) -> None:
    bundle, plan = made_dynamic
    model = rewrite_graph(bundle.reference, plan)
    joined = next(node for node in model.graph.node if node.op_type == "Concat" and "qbpass/repair" in node.name)
    joined.input[0], joined.input[1] = joined.input[1], joined.input[0]
    count = replayed(bundle, block_target(bundle, plan, model))
    assert 13 <= count.equal < count.rows


def test_plain_speculation_runs_the_operators_as_exported(made_dynamic: Made) -> None:
    bundle, _ = made_dynamic
    count = replayed(bundle, BlockTarget.from_bundle(bundle, SPEC).native(SPEC))
    assert count.equal < count.rows / 2


def test_a_straight_line_graph_is_split_in_its_active_form_alone(made_dynamic: Made) -> None:
    bundle, plan = made_dynamic
    active, native = (rewrite_graph(bundle.reference, plan, emission) for emission in ("active", "native"))
    for model, times in ((active, plan.max_queries), (native, 1)):
        count = sum(node.op_type == "DynamicQuantizeLinear" for node in model.graph.node)
        assert count == times * len(operators(bundle, "DynamicQuantizeLinear", "reference.onnx"))
    assert not any(node.name.startswith("qbpass/repair") for node in native.graph.node)


def test_emitted_nodes_say_which_repair_they_are(made_dynamic: Made) -> None:
    bundle, plan = made_dynamic
    tags = [
        {entry.key: entry.value for entry in node.metadata_props} for node in operators(bundle, "DynamicQuantizeMatMul")
    ]
    assert {tag["qbpass.repair"] for tag in tags} == {
        repair.kind for repair in plan.repairs if repair.kind.startswith("DynamicQuantizeMatMul")
    }
    assert {tag["qbpass.layout"] for tag in tags} == {"any"}, "a slot runs in each phase, for some rows or for none"


def test_another_layout_of_the_bundle_repairs_the_same_operators(made_dynamic: Made) -> None:
    bundle, plan = made_dynamic
    other = plan_for(bundle, "pq", SPEC)
    assert other.repairs == plan.repairs
    count = replayed(bundle, block_target(bundle, other))
    assert count.equal == count.rows


def test_specialized_graphs_replay_the_serial_rows(tiny_sdpa: Path, tmp_path: Path) -> None:
    bundle, _ = written(dynamic(tiny_sdpa, tmp_path / "model"), tmp_path / "bundle", emit="specialized")
    target = BlockTarget.from_bundle(bundle, SPEC)
    count = replayed(bundle, target)
    assert count.equal == count.rows
    native = replayed(bundle, target.native(SPEC))
    assert native.equal < native.rows
    assert np.isfinite(target.verify(random_tokens(bundle, 1))).all()


def test_a_prompt_that_is_read_one_row_a_call_is_read_in_blocks_of_repaired_rows(
    tiny_sdpa: Path, tmp_path: Path
) -> None:
    """The layout, and with it every repair, is active in prefill, too; blocks are as wide as the graph was made for."""
    model = dynamic(tiny_sdpa, tmp_path / "model")
    bundle, _ = written(model, tmp_path / "bundle", prefill="one", phase_mask=3)
    target, reference = BlockTarget.from_bundle(bundle, SPEC), serial_target(bundle)
    prompt = random_tokens(bundle, 11, 5)
    for each in (target, reference):
        each.start(20)
    assert target.prefill(prompt)[-1].tobytes() == reference.prefill(prompt)[-1].tobytes()
    for index in range(2 * len(bundle.reference.contract.kv)):
        assert target.cached(index).tobytes() == reference.cached(index).tobytes()
