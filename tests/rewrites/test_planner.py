"""A plan is what could not be proven wrong here, with what was proven wrong as evidence that anybody can replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from decoder_blocks import SPEC, plan_of, sites_of

from qbpass.admission.admit import admit
from qbpass.admission.report import AdmissionReport, Diagnostic, SiteReport
from qbpass.rewrites import planner
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.extents import EVERY_ROW_EXACT, NO_TAIL_EFFECT, ExtentRule
from qbpass.rewrites.falsify import SiteFalsifier, Trial, Witness
from qbpass.rewrites.plan import Layout, RewritePlan, SiteForm, SitePlan
from qbpass.rewrites.planner import FORMS, RewriteRefused, choose_form, make_plan, signature
from qbpass.rewrites.site_runner import SiteRunner, random_operands


def test_the_chosen_form_is_cheaper_than_separating_every_product(tiny_bundle: Bundle) -> None:
    """What x86 measures: QK's rows may stay together, AV's may not, and the rule for tails comes from a trial."""
    for site in tiny_bundle.manifest.sites:
        trials = site.evidence["trials"]
        assert site.evidence["verdict"] == "unknown"
        assert trials[-1]["verdict"] == "unknown"
        assert trials[-1]["rows_differing"] == 0
        assert trials[-1]["witness"] is None
        assert (site.qk, site.av) == (trials[-1]["qk"], trials[-1]["av"])
        assert trials[-1]["exact_extents"] == {
            "modulus": tiny_bundle.manifest.exact_extent_modulus,
            "residues": list(tiny_bundle.manifest.exact_extent_residues),
        }
        assert all(trial["verdict"] == "false" for trial in trials[:-1])
        assert (trials[0]["qk"], trials[0]["av"]) == FORMS[0]


def test_a_false_verdict_has_a_witness_that_shows_the_difference_again(tiny_bundle: Bundle) -> None:
    entry = tiny_bundle.manifest.sites[0]
    false = [trial for trial in entry.evidence["trials"] if trial["verdict"] == "false"]
    assert false
    site, sites = sites_of(tiny_bundle.reference)[0], sites_of(tiny_bundle.reference)
    for trial in false:
        witness = Witness(**trial["witness"])
        rule = ExtentRule(trial["exact_extents"]["modulus"], tuple(trial["exact_extents"]["residues"]))
        plan = RewritePlan("qb", 2, 4, tuple(SitePlan(s, SiteForm(trial["qk"], trial["av"], rule)) for s in sites))
        reach = max(planner_pasts()) + 4
        operands = random_operands(site, reach, witness.seed)
        block = SiteRunner(tiny_bundle.reference, plan, site, "active", SPEC).block(
            operands, witness.past, witness.queries
        )
        alone = SiteRunner(tiny_bundle.reference, plan, site, "native", SPEC).block(
            operands, witness.past + witness.row, 1
        )
        got = np.ascontiguousarray(block[:, :, witness.row : witness.row + 1])
        assert got.tobytes() != alone.tobytes()
        assert float(np.abs(got.astype(np.float64) - alone).max()) == witness.max_abs_difference


def planner_pasts() -> tuple[int, ...]:
    from qbpass.rewrites.falsify import PASTS

    return PASTS


class ScriptedFalsifier:
    """A site whose forms differ as `differs` says, without a session."""

    def __init__(self, site: object, differs: dict[tuple[str, str], str]):
        self.site, self.differs = site, differs
        self.pasts, self.max_queries = (4, 5, 6, 7, 8), 4

    def trial(self, form: SiteForm) -> Trial:
        trial = Trial(form, rows=50)
        how = self.differs.get((form.qk, form.av), "never")
        if form.clip == "keys" and (how == "keys" or (how == "keys row by row" and form.extents == EVERY_ROW_EXACT)):
            how = "never"
        for past in self.pasts:
            for row in range(3):
                extent = past + row + 1
                if how in ("tail", "keys") and form.extents == NO_TAIL_EFFECT and extent % 4 == 3:
                    trial.differing.append(Witness(past, 4, row, extent, 0, 1e-7))
            if how in ("always", "keys row by row") or (how == "keys" and form.extents != NO_TAIL_EFFECT):
                trial.differing.append(Witness(past, 4, 3, past + 4, 0, 1e-7))
        return trial


ALWAYS = dict.fromkeys(FORMS, "always")


@pytest.mark.parametrize(
    ("differs", "form", "trials"),
    [
        ({}, SiteForm("rows", "rows"), 1),
        ({("rows", "rows"): "always"}, SiteForm("rows", "batch"), 2),
        ({("rows", "rows"): "always", ("rows", "batch"): "tail"}, SiteForm("rows", "batch", ExtentRule(4, (3,))), 3),
        ({("rows", "rows"): "always", ("rows", "batch"): "always"}, SiteForm("batch", "batch"), 3),
        ({**ALWAYS, ("batch", "batch"): "keys"}, SiteForm("batch", "batch", ExtentRule(4, (3,)), "keys"), 8),
        ({**ALWAYS, ("batch", "batch"): "keys row by row"}, SiteForm("batch", "batch", EVERY_ROW_EXACT, "keys"), 7),
    ],
)
def test_the_cheapest_form_that_survives_is_chosen(
    tiny_bundle: Bundle, differs: dict[tuple[str, str], str], form: SiteForm, trials: int
) -> None:
    site = sites_of(tiny_bundle.reference)[0]
    chosen, evidence = choose_form(ScriptedFalsifier(site, differs), "qb")  # type: ignore[arg-type]
    assert chosen == form
    assert len(evidence["trials"]) == trials
    assert evidence["verdict"] == "unknown"


def test_pq_ends_its_keys_too_where_values_alone_do_not_mend_it(tiny_bundle: Bundle) -> None:
    site = sites_of(tiny_bundle.reference)[0]
    chosen, evidence = choose_form(ScriptedFalsifier(site, {("rows", "batch"): "keys"}), "pq")  # type: ignore[arg-type]
    assert chosen.clip == "keys"
    assert [trial["clip"] for trial in evidence["trials"]] == ["values", "keys"]
    assert [trial["verdict"] for trial in evidence["trials"]] == ["false", "unknown"]


@pytest.mark.parametrize(("layout", "tried"), [("qb", 2 * len(FORMS)), ("pq", 2)])
def test_where_every_form_is_false_the_refusal_has_the_witness(tiny_bundle: Bundle, layout: str, tried: int) -> None:
    site = sites_of(tiny_bundle.reference)[0]
    falsifier = ScriptedFalsifier(site, dict.fromkeys(FORMS, "always"))
    with pytest.raises(RewriteRefused, match=f"every {layout.upper()} form of attention.0 is false") as raised:
        choose_form(falsifier, layout)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    assert len(raised.value.trials) == tried
    assert all(trial["witness"] for trial in raised.value.trials)


def test_pq_is_not_mended_with_a_tail_rule(tiny_bundle: Bundle) -> None:
    """PQ slices every query's own extent: if a row still bears a mark of the block, nothing mends it."""
    site = sites_of(tiny_bundle.reference)[0]
    with pytest.raises(RewriteRefused):
        choose_form(ScriptedFalsifier(site, {("rows", "batch"): "tail"}), "pq")  # type: ignore[arg-type]


def test_sites_of_one_kind_are_tried_once(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def falsifier(frozen: object, layout: str, site: object, *rest: object) -> ScriptedFalsifier:
        tried.append(site.name)  # type: ignore[attr-defined]
        return ScriptedFalsifier(site, {})

    monkeypatch.setattr(planner, "SiteFalsifier", falsifier)
    plan = make_plan(tiny_bundle.reference, admit(tiny_bundle.reference), "qb", SPEC)
    assert tried == ["attention.0"]
    assert [entry.site.name for entry in plan.sites] == ["attention.0", "attention.1", "attention.2"]
    site = plan.sites[0].site
    assert signature(tiny_bundle.reference, site) == signature(tiny_bundle.reference, plan.sites[2].site)
    assert signature(tiny_bundle.reference, site) != signature(tiny_bundle.reference, replace(site, kv_heads=1))


def test_a_refused_report_is_refused_with_its_codes(tiny_bundle: Bundle) -> None:
    report = admit(tiny_bundle.reference)
    first = report.sites[0]
    refused = SiteReport(first.name, first.kind, 0, first.site, (Diagnostic("QB123", first.name, "not this one"),))
    mixed = AdmissionReport(report.model, (refused, *report.sites[1:]), (Diagnostic("QB099", "", "nor this graph"),))
    with pytest.raises(
        RewriteRefused, match=r"1 of 3 attention sites are refused \(QB123\) and the graph is refused \(QB099\)"
    ) as raised:
        make_plan(tiny_bundle.reference, mixed, "qb", SPEC)
    assert raised.value.trials == ()


@pytest.mark.parametrize("layout", ["qb", "pq"])
@pytest.mark.parametrize("mask", [1, 3, 4, 15])
def test_no_layout_is_active_in_a_prefill_that_the_reference_does_in_one_native_call(
    tiny_bundle: Bundle, layout: Layout, mask: int
) -> None:
    with pytest.raises(RewriteRefused, match=f"phase mask {mask} rewrites prefill"):
        make_plan(tiny_bundle.reference, admit(tiny_bundle.reference), layout, SPEC, phase_mask=mask)


def test_the_strictest_site_decides_which_prefixes_are_bound(tiny_bundle: Bundle) -> None:
    sites = sites_of(tiny_bundle.reference)
    rules = (NO_TAIL_EFFECT, ExtentRule(4, (3,)), ExtentRule(8, (2,)))
    plan = RewritePlan("qb", 2, 4, tuple(SitePlan(s, SiteForm(extents=r)) for s, r in zip(sites, rules, strict=True)))
    assert plan.extents == ExtentRule(8, (2, 3, 7))
    assert plan.segments == 3
    assert replace(plan, layout="pq").segments == 1


@pytest.mark.parametrize("layer", [1, 2])
def test_a_site_behind_the_first_layer_can_be_tried(tiny_bundle: Bundle, layer: int) -> None:
    """Its extents come from the first layer's inputs, which a cut-out site must still be given."""
    sites = sites_of(tiny_bundle.reference)
    falsifier = SiteFalsifier(tiny_bundle.reference, "qb", sites[layer], sites, 4, SPEC, pasts=(0, 5, 6))
    assert falsifier.trial(plan_of(tiny_bundle, extents=ExtentRule(4, (3,))).sites[0].form).differing == []


def test_the_falsifier_writes_nothing_beside_the_model(tiny_bundle: Bundle) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(tiny_bundle.folder).iterdir()}
    sites = sites_of(tiny_bundle.reference)
    SiteFalsifier(tiny_bundle.reference, "qb", sites[0], sites, 4, SPEC, pasts=(3,)).trial(SiteForm())
    assert {path: path.stat().st_mtime_ns for path in Path(tiny_bundle.folder).iterdir()} == before


def test_a_form_that_can_not_be_loaded_is_no_candidate_and_the_next_one_is_tried(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider may lack a kernel that one form needs."""
    from qbpass.models.errors import ModelFileError
    from qbpass.rewrites import site_runner

    opened = site_runner.open_session

    def without_transposed_batches(graph: bytes, *arguments: object, **options: object) -> object:
        nodes = onnx.load_from_string(graph).graph.node
        if any(entry.name == "transBatchB" and entry.i for node in nodes for entry in node.attribute):
            raise ModelFileError("no kernel for transBatchB")
        return opened(graph, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(site_runner, "open_session", without_transposed_batches)
    with pytest.raises(RewriteRefused, match=r"fails to run on this machine: .*no kernel for transBatchB") as raised:
        make_plan(tiny_bundle.reference, admit(tiny_bundle.reference), "qb", SPEC)
    assert {trial["verdict"] for trial in raised.value.trials} == {"not run"}
    assert make_plan(tiny_bundle.reference, admit(tiny_bundle.reference), "pq", SPEC).layout == "pq"
