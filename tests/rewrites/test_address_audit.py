"""Emitted graphs are followed element by element before a falsifier runs them on numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from decoder_blocks import SPEC, plan_of, sites_of
from faults import FAULTS, Fault, head_order_reversed
from graph_corruptions import Edit, keys_edge, times

from qbpass.admission.admit import admit
from qbpass.admission.calls.call import Call
from qbpass.admission.dataflow import Flow
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides import algebra_layout, view_ops
from qbpass.admission.strides.exported_audit import ExportedGraph
from qbpass.admission.strides.view import View
from qbpass.models.loading import load_decoder
from qbpass.rewrites import apply, candidates, guard, planner
from qbpass.rewrites.address_audit import PlanAuditor, SiteAudit, audit_calls, audit_site
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.bundle import Bundle, open_bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.extents import EVERY_ROW_EXACT, NO_TAIL_EFFECT, ExtentRule
from qbpass.rewrites.layouts.context import SiteContext
from qbpass.rewrites.plan import Layout, RewritePlan, SiteForm, SitePlan
from qbpass.rewrites.plan_audit import audit_plan
from qbpass.rewrites.planner import FORMS, RewriteRefused, make_plan
from qbpass.rewrites.site_runner import SiteRunner, random_operands

LAYOUTS: tuple[Layout, ...] = ("qb", "pq")
RULES = (NO_TAIL_EFFECT, ExtentRule(4, (3,)), EVERY_ROW_EXACT)
LAYER = 1


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def bundle(request: pytest.FixtureRequest, tiny_bundle: Bundle, tiny_sdpa_bundle: Bundle) -> Bundle:
    return tiny_bundle if request.param == "eager" else tiny_sdpa_bundle


@cache
def sites_in(folder: Path) -> tuple[AttentionSite, ...]:
    return sites_of(open_bundle(folder).reference)


def plan(bundle: Bundle, layout: Layout, form: SiteForm | None = None) -> RewritePlan:
    form = form or SiteForm("rows", "batch", ExtentRule(4, (3,)))
    return RewritePlan(layout, 2, 4, tuple(SitePlan(site, form) for site in sites_in(bundle.folder)))


def audit(bundle: Bundle, layout: Layout, form: SiteForm | None = None, calls: Any = None) -> SiteAudit:
    made = plan(bundle, layout, form)
    return audit_site(bundle.reference, made, made.sites[LAYER].site, calls)


def codes(found: SiteAudit, part: str | None = None) -> set[str]:
    return {p.code for call in found.calls if part in (None, call.place.part) for p in call.problems}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.modulus}:{rule.residues}")
@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_every_form_of_qb_reads_what_the_exported_site_reads(
    tiny_bundle: Bundle, form: tuple[Any, Any], rule: ExtentRule
) -> None:
    found = audit(tiny_bundle, "qb", SiteForm(*form, rule), (Call(1, 5), Call(4, 6), Call(4, 7)))
    assert [problem.message for problem in found.problems] == []
    assert [call.place.part for call in found.calls] == ["exported"] * 3 + ["active"] * 3 + ["native"] * 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_layouts_of_both_exports_read_what_the_exported_site_reads(bundle: Bundle, layout: Layout) -> None:
    found = audit(bundle, layout)
    assert found.problems == ()
    assert len(found.calls) == 3 * len(audit_calls(found.site, 4)) == 15


def test_a_wider_plan_is_looked_at_in_its_whole_width(tiny_bundle: Bundle) -> None:
    """PQ writes one subgraph a query: the last one, too, must read its own rows."""
    wide = replace(plan(tiny_bundle, "pq"), max_queries=7)
    site = wide.sites[LAYER].site
    assert [call.queries for call in audit_calls(site, 7)] == [1, 2, 3, 4, 4, 7]
    assert audit_site(tiny_bundle.reference, wide, site, (Call(7, 3),)).problems == ()


def test_segments_without_rows_run_and_change_nothing(tiny_bundle: Bundle) -> None:
    """A block whose rows all end at the last key leaves its first segment empty."""
    sites = sites_in(tiny_bundle.folder)
    outputs = []
    for rule in (NO_TAIL_EFFECT, ExtentRule(4, (3,))):
        made = plan(tiny_bundle, "qb", SiteForm("rows", "rows", rule))
        runner = SiteRunner(tiny_bundle.reference, made, sites[0], "active", SPEC)
        outputs.append(runner.block(random_operands(sites[0], 8, 0), 5, 1))
    assert outputs[0].tobytes() == outputs[1].tobytes()


EXPECTED = {
    "first_mask_row_for_every_query": {"MASK_MAP"},
    "last_mask_row_for_every_query": {"MASK_MAP"},
    "mask_rows_shifted_by_one": {"MASK_MAP"},
    "head_order_reversed": {"QUERY_MAP"},
    "kv_heads_interleaved": {"KEY_MAP", "VALUE_MAP"},
    "output_rows_reversed": {"OUTPUT_MAP"},
    "query_rows_reversed": {"QUERY_MAP"},
    "kv_stream_chosen_by_query": {"KEY_MAP", "MASK_MAP", "VALUE_MAP", "VALUE_EXTENT"},
    "every_query_a_stream_of_its_own": {"STEPS"},
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_broken_emitter_is_caught_by_name_and_by_both_traces(
    tiny_bundle: Bundle, layout: Layout, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(apply.LAYOUT_EMITTERS, layout, fault(apply.LAYOUT_EMITTERS[layout]))
    found = audit(tiny_bundle, layout, calls=(Call(2, 3), Call(3, 4), Call(4, 5)))
    expected = EXPECTED[fault.__name__]
    assert codes(found, "active") <= expected
    assert codes(found, "active") & expected
    assert codes(found, "exported") == codes(found, "native") == set()
    assert {p.evidence.get("found_by", "both") for p in found.problems} == {"both"}


@pytest.mark.parametrize("fault", FAULTS[::3], ids=lambda fault: fault.__name__)
def test_planning_refuses_a_broken_emitter_before_a_falsifier_runs(
    tiny_bundle: Bundle, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(apply.LAYOUT_EMITTERS, "qb", fault(apply.LAYOUT_EMITTERS["qb"]))
    monkeypatch.setattr(planner, "SiteFalsifier", _no_falsifier)
    with pytest.raises(RewriteRefused, match=r"attention\.0 does not read what it must") as raised:
        make_plan(tiny_bundle.reference, admit(tiny_bundle.reference), "qb", SPEC)
    assert raised.value.problems[0].code in EXPECTED[fault.__name__]
    assert raised.value.problems[0].code in str(raised.value)
    assert "\n" not in str(raised.value)


def _no_falsifier(*arguments: object) -> NoReturn:
    raise AssertionError("a falsifier was started on a layout whose addresses are wrong")


def test_a_fault_of_what_is_written_leaves_no_bundle(
    tiny_eager: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan was good, the graph that would be run is not."""
    sound = apply.LAYOUT_EMITTERS["qb"]
    monkeypatch.setattr(planner, "SiteFalsifier", lambda *arguments: None)
    monkeypatch.setattr(planner, "choose_form", lambda *arguments: (SiteForm(), {"trials": []}))

    def broken(*arguments: Any) -> Any:
        monkeypatch.setitem(apply.LAYOUT_EMITTERS, "qb", head_order_reversed(sound))
        return rewrite_graph(*arguments)

    monkeypatch.setattr(candidates, "rewrite_graph", broken)
    with pytest.raises(RewriteRefused, match="QUERY_MAP"):
        write_bundle(load_decoder(tiny_eager), tmp_path / "bundle", "qb", SPEC)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("emission", ["active", "native"])
def test_straight_line_graphs_are_followed_too(tiny_bundle: Bundle, emission: apply.Emission) -> None:
    made = plan(tiny_bundle, "qb")
    exported = ExportedGraph(Flow.of(tiny_bundle.reference))
    models = {emission: rewrite_graph(tiny_bundle.reference, made, emission)}
    found = PlanAuditor(made, models, exported).audit(made.sites[2].site, (Call(2, 3), Call(4, 5)))
    assert {call.place.part for call in found.calls} == {"exported", emission}
    assert found.problems == ()


def _with_context(**changed: Callable[[NodeBuilder, SiteContext], Any]) -> Fault:
    """A layout that gets something else in place of parts of its context."""

    def fault(emit: Any) -> Any:
        def broken(builder: NodeBuilder, context: SiteContext) -> Any:
            made = {name: build(builder, context) for name, build in changed.items()}
            return emit(builder, replace(context, **made))

        return broken

    return fault


def _copied_keys(builder: NodeBuilder, context: SiteContext) -> Any:
    keys = context.key_nHD
    bounds = [[builder.ints(value) for value in at] for at in ((0, 1, 0), (1, 1 << 40, 0))]
    parts = [builder.node("Slice", [keys, *at], f"copy/{k}", dtype=keys.dtype) for k, at in enumerate(bounds)]
    copy = builder.node("Concat", parts, "copy", axis=0, dtype=keys.dtype)
    copy.shape = keys.shape
    return copy


def test_a_copy_of_the_keys_is_no_shared_stream_though_it_holds_the_same_elements(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(apply.LAYOUT_EMITTERS, "qb", _with_context(key_nHD=_copied_keys)(apply.LAYOUT_EMITTERS["qb"]))
    found = audit(tiny_bundle, "qb", calls=(Call(2, 3),))
    (problem,) = found.problems
    assert problem.code == "STREAM_COPIED"
    assert problem.message == f"Concat copies {5 * 2 * 16 * 4:,} bytes of key"


def test_qb_shares_keys_and_values_by_strides_of_zero_and_copies_neither(bundle: Bundle) -> None:
    found = audit(bundle, "qb", SiteForm("batch", "batch"), calls=(Call(4, 5),))
    (active,) = (call for call in found.calls if call.place.part == "active")
    operands = {op.roots: op.view for op in active.operations if op.operator == "FusedMatMul operand 1"}
    row = 2 * 16 * 4  # bytes from one key row to the next: two KV heads of 16 floats
    assert operands[("key",)].shape == (2, 8, 16, 9)  # KV heads, group x queries, channels, keys
    assert operands[("key",)].strides == (64, 0, 4, row)
    assert operands[("value",)].shape == (2, 2, 4, 9, 16)  # KV heads, group, queries, keys, channels
    assert operands[("value",)].strides == (64, 0, 0, row, 4)
    assert [op.roots for op in active.operations if op.form == "copy"] == []
    assert {op.roots: op.nbytes for op in active.operations if op.form == "write"} == {
        ("key",): 4 * row,
        ("value",): 4 * row,
    }


def test_the_mask_is_viewed_with_its_own_row_for_each_query_and_shared_by_the_heads(bundle: Bundle) -> None:
    """Section 3.2: the mask's query stride becomes the stride of the new axis."""
    found = audit(bundle, "qb", SiteForm("rows", "batch"), calls=(Call(4, 5),))
    (active,) = (call for call in found.calls if call.place.part == "active")
    (mask,) = (op.view for op in active.operations if op.roots == ("mask",) and op.operator.startswith("Add"))
    assert mask.shape == (2, 2, 4, 1, 9)
    assert [mask.strides[axis] for axis in (0, 1, 2, 4)] == [0, 0, 9 * 4, 4]
    assert mask.shared == (0, 1)


def test_pq_is_said_to_copy_keys_and_values_over_the_group(bundle: Bundle) -> None:
    found = audit(bundle, "pq", calls=(Call(2, 3), Call(4, 7)))
    graphs = found.summary()["graphs"]
    for root in ("key", "value"):
        assert graphs["active"]["copies"][f"Reshape of {root}"] == {"2+3": 4 * 5 * 16 * 4, "4+7": 4 * 11 * 16 * 4}
    assert found.summary()["problems"] == []


def test_every_view_of_an_emitted_site_lies_in_its_memory_on_whole_elements_and_overlaps_nowhere(
    bundle: Bundle,
) -> None:
    for layout in LAYOUTS:
        for call in audit(bundle, layout, calls=(Call(3, 4), Call(4, 5))).calls:
            for op in call.operations:
                assert op.view.within_allocation
                assert op.view.elements_aligned
                assert not op.view.overlaps


def test_a_value_prefix_is_the_first_rows_of_the_same_memory(tiny_bundle: Bundle) -> None:
    found = audit(tiny_bundle, "qb", calls=(Call(4, 5),))
    (active,) = (call for call in found.calls if call.place.part == "active")
    products = [op.view for op in active.operations if op.roots == ("value",) and op.operator.endswith("operand 1")]
    assert [view.shape[-2] for view in products] == [7, 9]
    assert {view.allocation.name for view in products} == {"cache.1.value"}
    assert {view.allocation.nbytes for view in products} == {9 * 2 * 16 * 4}
    assert {view.offset for view in products} == {0}


def test_cache_rows_written_in_another_order_are_caught(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = apply.emit_update

    def broken(builder: NodeBuilder, site: Any, cache: Any, new: Any, dims: Any) -> None:
        bounds = [builder.ints(value) for value in (-1, -(1 << 40), 0, -1)]
        slots = builder.node("Slice", [dims.slots, *bounds], "fault/slots", dtype="int64")
        sound(builder, site, cache, new, replace(dims, slots=slots))

    monkeypatch.setattr(apply, "emit_update", broken)
    found = audit(tiny_bundle, "qb", calls=(Call(2, 3),))
    assert {"CACHE_ROWS", "KEY_MAP", "VALUE_MAP"} == codes(found, "native")
    assert {"CACHE_ROWS", "KEY_MAP"} <= codes(found, "active")


def test_rows_that_are_not_written_are_read_as_nothing(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in a cache behind its past rows is left from rejected tokens: plausible numbers, and nobody's keys."""

    def broken(builder: NodeBuilder, site: Any, cache: Any, new: Any, dims: Any) -> None:
        for before, after in ((cache.key_in, cache.key), (cache.value_in, cache.value)):
            builder.nodes.append(gs.Node("Identity", f"{after.name}/kept", inputs=[before], outputs=[after]))

    monkeypatch.setattr(apply, "emit_update", broken)
    found = audit(tiny_bundle, "qb", calls=(Call(2, 3),))
    assert {"CACHE_ROWS", "KEY_MAP"} <= codes(found, "active") & codes(found, "native")
    assert any("nothing instead of row 3, head 0, channel 0" in problem.message for problem in found.problems)


def test_keys_written_as_values_are_caught(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = apply.emit_update

    def broken(builder: NodeBuilder, site: Any, cache: Any, new: Any, dims: Any) -> None:
        sound(builder, site, cache, {"key": new["value"], "value": new["key"]}, dims)

    monkeypatch.setattr(apply, "emit_update", broken)
    found = audit(tiny_bundle, "qb", calls=(Call(2, 3),))
    assert any(
        p.code == "UNTRACED" and "reads elements of value where key is read" in p.message for p in found.problems
    )


def test_a_guard_that_chooses_the_other_layout_is_caught(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    table = guard.guard_table
    monkeypatch.setattr(guard, "guard_table", lambda mask: [not active for active in table(mask)])
    found = audit(tiny_bundle, "qb", calls=(Call(4, 5),))
    assert "PHASE_GUARD" in codes(found, "active") & codes(found, "native")
    assert "VALUE_EXTENT" in codes(found, "active")  # the native layout reads values up to the last key


def test_another_scale_is_caught(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(emit: Any) -> Any:
        def broken(builder: NodeBuilder, context: SiteContext) -> Any:
            before = len(builder.nodes)
            output = emit(builder, context)
            next(n for n in builder.nodes[before:] if n.op == "FusedMatMul").attrs["alpha"] = 0.125
            return output

        return broken

    monkeypatch.setitem(apply.LAYOUT_EMITTERS, "qb", halved(apply.LAYOUT_EMITTERS["qb"]))
    (problem,) = audit(tiny_bundle, "qb", calls=(Call(2, 3),)).problems
    assert problem.code == "STEPS"
    assert problem.message == "score: product(alpha=0.125), + mask instead of product(alpha=0.25), + mask"


def test_a_factor_behind_the_cache_goes_in_front_of_it_for_every_row(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys halved in every call: the cache then holds halved keys, those of earlier calls and those of this one."""
    edit = Edit(tiny_bundle.reference, sites_in(tiny_bundle.folder), LAYER)
    edit.insert(*keys_edge(edit), times(0.5))
    decoder = edit.decoder_now()
    sites = sites_of(decoder)
    assert [step.node for step in sites[LAYER].key_steps] == ["corrupt.times"]
    made = RewritePlan("qb", 2, 4, tuple(SitePlan(site, SiteForm()) for site in sites))
    calls = (Call(2, 3),)
    found = audit_site(decoder, made, sites[LAYER], calls)
    assert found.problems == ()
    assert {call.steps["key"] for call in found.calls if call.steps} == {("Mul(0.5)",)}
    monkeypatch.setattr(apply, "move_steps", lambda builder, site, new, producers, tensors: new)
    assert {"CACHE_ROWS", "STEPS"} <= codes(audit_site(decoder, made, sites[LAYER], calls), "active")


def test_an_algebra_that_is_wrong_is_contradicted_by_the_oracle(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices that forget their start: the addresses are plausible, and not those that numpy reads."""
    take = view_ops.take

    def forgetful(view: View, *bounds: Any) -> View:
        return replace(take(view, *bounds), offset=view.offset)

    monkeypatch.setattr(algebra_layout.view_ops, "take", forgetful)
    found = audit(tiny_bundle, "pq", calls=(Call(2, 3),))
    disagreeing = [p for p in found.problems if p.code == "ORACLE_DISAGREES"]
    assert {p.evidence["graph"] for p in disagreeing} == {"active"}
    assert {p.evidence["found_by"] for p in found.problems if p.code.endswith("_MAP")} == {"algebra"}


def test_a_product_that_the_algebra_reads_wrong_is_contradicted_too(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result has the same numbers in both traces: what they were made from is compared."""
    sound = view_ops.product_operand

    def turned(view: View, **flags: bool) -> View:
        read = sound(view, **flags)
        return view_ops.take(read, [-1], [-(1 << 40)], [0], [-1])

    monkeypatch.setattr(algebra_layout.view_ops, "product_operand", turned)
    found = audit(tiny_bundle, "qb", calls=(Call(2, 3),))
    (problem,) = (p for p in found.problems if p.code == "ORACLE_DISAGREES" and p.evidence["graph"] == "active")
    assert problem.message == "a product or sum reads other elements in the algebra and in the oracle"


def test_sites_of_one_kind_share_an_audit(tiny_bundle: Bundle) -> None:
    made = plan(tiny_bundle, "qb")
    audits = audit_plan(tiny_bundle.reference, made, ExportedGraph(Flow.of(tiny_bundle.reference)), (Call(2, 3),))
    assert sorted(audits) == ["attention.0", "attention.1", "attention.2"]
    assert len({id(found) for found in audits.values()}) < 3


def test_a_manifest_says_how_many_views_and_which_copies_a_site_has(tiny_bundle: Bundle) -> None:
    for entry in tiny_bundle.manifest.sites:
        addresses = entry.evidence["addresses"]
        assert addresses["problems"] == []
        assert set(addresses["graphs"]) == {"exported", "active", "native"}
        assert addresses["graphs"]["active"]["views"] > 10
        copies = addresses["graphs"]["active"]["copies"]
        assert [name for name in copies if "key" in name or "value" in name] == []
        assert addresses["graphs"]["exported"]["copies"]["Reshape of key"]["4+7"] == 4 * 11 * 16 * 4


def test_an_audit_is_plain_data_that_names_every_operation(tiny_bundle: Bundle) -> None:
    made = plan_of(tiny_bundle)
    found = audit_site(tiny_bundle.reference, made, made.sites[0].site, (Call(2, 3),))
    data = json.loads(json.dumps(found.to_json()))
    assert data["site"] == "attention.0"
    active = next(call for call in data["calls"] if call["graph"] == "active")
    row = next(op for op in active["operations"] if op["tensor"].endswith("/qk/rows") and op["operator"] == "Reshape")
    assert row["form"] == "view"
    assert (row["of"], row["shape"], row["strides"], row["offset"]) == (["query"], [2, 4, 16], [256, 64, 4], 0)
    assert np.prod(row["shape"]) * 4 == 4 * 2 * 16 * 4
