"""No repair that nothing asks for: plans are minimal, and a repair is made only for a witness or by force."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from decoder_blocks import SPEC, block_target, replayed
from fused_graphs import Fused, fused_decoder
from quantized_exports import flow_and_attention, operators, written
from site_graphs import Knobs, make_decoder

from qbpass.admission.admit import admit
from qbpass.admission.dataflow import Flow
from qbpass.models.decoder import Decoder
from qbpass.models.loading import load_decoder
from qbpass.models.session import open_session
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.bundle import Bundle, plan_for
from qbpass.rewrites.bundle_writer import GRAPHS, write_bundle
from qbpass.rewrites.manifest import Emit
from qbpass.rewrites.planner import RewriteRefused, make_plan
from qbpass.rewrites.row_repair import falsify
from qbpass.rewrites.row_repair.candidates import row_kinds
from qbpass.rewrites.row_repair.plan_repairs import plan_repairs
from qbpass.rewrites.row_repair.repair import RowRepair
from qbpass.runtime.block_target import BlockTarget


@pytest.fixture(scope="module")
def plan(tiny_sdpa_bundle: Bundle) -> Any:
    return make_plan(tiny_sdpa_bundle.reference, admit(tiny_sdpa_bundle.reference), "qb", SPEC)


def test_every_computing_operator_outside_attention_is_tried(tiny_sdpa_bundle: Bundle, plan: Any) -> None:
    tried = {label.split(",")[0] for label in plan.repair_evidence}
    assert {"MatMul", "ReduceMean", "Mul", "Add", "QuickGelu", "Pow", "Sqrt"} <= tried
    flow, attention = flow_and_attention(tiny_sdpa_bundle)
    nodes = [name for kind in row_kinds(flow, attention) for unit in kind.units for name in unit.nodes]
    assert len(nodes) == len(set(nodes))
    assert not attention & set(nodes)
    assert sum(kind["nodes"] for kind in plan.repair_evidence.values()) == len(nodes)


def test_a_kind_is_tried_on_the_weights_of_two_of_its_nodes(tiny_sdpa_bundle: Bundle, plan: Any) -> None:
    flow, _ = flow_and_attention(tiny_sdpa_bundle)
    for label, kind in plan.repair_evidence.items():
        if label.startswith("MatMul") and kind["nodes"] > 1:
            first, second = (flow.node(name) for name in kind["tried_on"])
            assert first.input[1] != second.input[1]


def test_an_operator_that_nothing_falsified_is_repaired_by_force_alone(tiny_sdpa: Path, tmp_path: Path) -> None:
    bundle, plan = written(tiny_sdpa, tmp_path / "bundle", force_repairs=["MatMul"])
    forced = [repair for repair in plan.repairs if repair.forced]
    survived = [label for label, kind in plan.repair_evidence.items() if kind["verdict"] == "unknown"]
    assert {repair.kind for repair in forced} == {label for label in survived if label.startswith("MatMul,")}
    assert forced or all(repair.kind.startswith("MatMul,") for repair in plan.repairs)
    nodes = {name for repair in plan.repairs for unit in repair.units for name in unit.nodes}
    assert len(operators(bundle, "MatMul")) >= plan.max_queries * len(nodes)
    assert plan.head == "all", "a head whose rows are run apart takes each row of its call"
    count = replayed(bundle, block_target(bundle, plan))
    assert count.equal == count.rows
    assert [r.kind for r in bundle.manifest.repairs if r.forced] == [repair.kind for repair in forced]
    assert plan_for(bundle, "pq", SPEC).repairs == plan.repairs


def test_an_operator_that_is_not_there_can_not_be_forced(tiny_sdpa_bundle: Bundle) -> None:
    report = admit(tiny_sdpa_bundle.reference)
    with pytest.raises(RewriteRefused, match=r"no operator 'MatMulNBits' to force a repair of: .*MatMul") as refused:
        make_plan(tiny_sdpa_bundle.reference, report, "qb", SPEC, force_repairs=["MatMulNBits"])
    assert "\n" not in str(refused.value)


def test_a_plan_with_a_repair_that_no_trial_asks_for_is_refused(tiny_sdpa_bundle: Bundle, plan: Any) -> None:
    flow, attention = flow_and_attention(tiny_sdpa_bundle)
    kind = next(k for k in row_kinds(flow, attention) if plan.repair_evidence[k.label]["verdict"] == "unknown")
    unasked = RowRepair(kind.label, kind.units)
    with pytest.raises(RewriteRefused, match=r"no trial falsified the rows of .*--force-repair") as refused:
        rewrite_graph(tiny_sdpa_bundle.reference, replace(plan, repairs=(unasked,)))
    assert "\n" not in str(refused.value)
    rewrite_graph(tiny_sdpa_bundle.reference, replace(plan, repairs=(replace(unasked, forced=True),)))


class CoupledFrom:
    """A session in which a call of `rows` rows or more changes its last row by one bit."""

    def __init__(self, session: Any, rows: int):
        self.session, self.rows = session, rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run(self, names: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        outputs = [np.array(output) for output in self.session.run(names, feeds)]
        if next(iter(feeds.values())).shape[1] >= self.rows:
            outputs[0][:, -1].view(np.uint32)[..., 0] ^= 1
        return outputs


def repairs_where_kernels_couple(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, rows: int, *, slots: bool) -> Any:
    """The repairs where every MatMul couples calls of `rows` rows, in the repaired form, too, if `slots`."""

    def opened(model: bytes, *args: Any, **options: Any) -> Any:
        session = open_session(model, *args, **options)
        coupled = b"MatMul" in model and (slots or b"Split" not in model)
        return CoupledFrom(session, rows) if coupled else session

    monkeypatch.setattr(falsify, "open_session", opened)
    flow, attention = flow_and_attention(bundle)
    return plan_repairs(bundle.reference, flow, attention, 4, SPEC)


def test_the_form_is_the_widest_call_that_no_trial_falsifies(
    tiny_sdpa_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    repairs, evidence = repairs_where_kernels_couple(tiny_sdpa_bundle, monkeypatch, 3, slots=False)
    (falsified,) = {evidence[repair.kind]["trials"][0]["witness"]["queries"] for repair in repairs}
    assert falsified == 3
    assert {(r.kind.split(",")[0], r.rows_per_call, r.slots(4)) for r in repairs} == {("MatMul", 2, 2)}


def test_a_repair_that_is_false_itself_is_refused_with_its_witness(
    tiny_sdpa_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RewriteRefused, match="is false on this machine even in calls of one row each: row 1 of 2"):
        repairs_where_kernels_couple(tiny_sdpa_bundle, monkeypatch, 2, slots=True)


def test_without_its_weights_an_operator_is_unknown_and_says_why(tiny_sdpa_bundle: Bundle, tmp_path: Path) -> None:
    reference = tiny_sdpa_bundle.reference
    elsewhere = Decoder(tmp_path / "reference.onnx", reference.model, reference.interface)
    flow, attention = flow_and_attention(tiny_sdpa_bundle)
    repairs, evidence = plan_repairs(elsewhere, flow, attention, 4, SPEC)
    products = [kind for label, kind in evidence.items() if label.startswith("MatMul,")]
    assert repairs == ()
    assert {(kind["verdict"], kind["reason"]) for kind in products} == {
        ("unknown", "its weights are not here to be tried")
    }


@pytest.mark.parametrize("emit", ["guarded", "specialized"])
def test_repairs_stand_beside_chains_of_fused_attention(tmp_path: Path, emit: Emit) -> None:
    separate = Fused("decomposed", heads=4, kv_heads=4, added="causal")
    onnx.save(fused_decoder(Fused(), separate).model, tmp_path / "model.onnx")
    decoder = load_decoder(tmp_path / "model.onnx")
    bundle, plan, _ = write_bundle(decoder, tmp_path / "bundle", "pq", SPEC, emit=emit, force_repairs=["MatMul"])
    assert len(plan.chains) == len(plan.sites) == 1
    assert plan.repairs
    for name in GRAPHS[emit]:
        nodes = onnx.load_from_string(bundle.graph(name)).graph.node
        made = [output for node in nodes for output in node.output if output]
        assert len(made) == len(set(made)), "no two nodes make one tensor"
    count = replayed(bundle, BlockTarget.from_bundle(bundle, SPEC))
    assert count.equal == count.rows


def planned_for(knobs: Knobs, *nodes: onnx.NodeProto, **options: Any) -> tuple[Any, dict[str, dict[str, Any]]]:
    """The repairs of a small decoder with these nodes behind its logits (1, q, 16), each last output the graph's."""
    decoder = make_decoder(knobs)
    decoder.model.graph.node.extend(nodes)
    made = {name: onnx.TensorProto.FLOAT for node in nodes[-1:] for name in node.output}
    decoder.model.graph.output.extend(onnx.helper.make_tensor_value_info(*entry, None) for entry in made.items())
    return plan_repairs(decoder, Flow.of(decoder), (), 4, SPEC, **options)


def test_rows_that_can_not_be_split_are_unknown_with_the_reason_and_not_forced() -> None:
    repairs, evidence = planned_for(Knobs(quantize="flat"))
    assert repairs == ()
    quantizer = evidence["DynamicQuantizeLinear"]
    assert (quantizer["verdict"], quantizer["trials"]) == ("unknown", [])
    assert quantizer["reason"].startswith("no axis of ")
    with pytest.raises(RewriteRefused, match="no operator 'DynamicQuantizeLinear' to force"):
        planned_for(Knobs(quantize="flat"), force=["DynamicQuantizeLinear"])


def test_a_scale_spelled_out_is_repaired_with_all_that_reads_it() -> None:
    nodes = [
        onnx.helper.make_node("Abs", ["logits"], ["sizes"]),
        onnx.helper.make_node("ReduceMax", ["sizes"], ["largest"], keepdims=0),
        onnx.helper.make_node("Div", ["logits", "largest"], ["steps"]),
        onnx.helper.make_node("Round", ["steps"], ["rounded"]),
        onnx.helper.make_node("Mul", ["rounded", "largest"], ["again"]),
    ]
    repairs, evidence = planned_for(Knobs(), *nodes)
    coupled = next(repair for repair in repairs if repair.units[0].seed == "largest")
    assert coupled.units[0].nodes == ("largest", "steps", "rounded", "again")
    assert evidence[coupled.kind]["trials"][0]["verdict"] == "false"
    assert evidence[coupled.kind]["trials"][-1]["verdict"] == "unknown"


def test_an_operator_that_sums_over_all_rows_is_refused_where_it_also_reads_keys() -> None:
    """Cached rows among the rows of a call: no split by rows gives each row its own."""
    nodes = [
        onnx.helper.make_node("ReduceMax", ["l0.qk"], ["largest"], keepdims=0),
        onnx.helper.make_node("Div", ["l0.qk", "largest"], ["steps"]),
    ]
    with pytest.raises(RewriteRefused, match=r"can't be split by rows: 'l0\.qk' grows with the rows before the call"):
        planned_for(Knobs(), *nodes)
