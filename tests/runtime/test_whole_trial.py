"""A rewritten decoder is run whole before its bundle appears: one row that differs refuses it, with the row."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
import pytest
from decoder_blocks import SPEC, plan_of

from qbpass.models.loading import load_decoder
from qbpass.rewrites.apply import Emission, rewrite_graph
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.extents import NO_TAIL_EFFECT
from qbpass.rewrites.gs_graph import gs_graph, plan_gs
from qbpass.rewrites.plan import RewritePlan, SiteForm
from qbpass.rewrites.refused import RewriteRefused
from qbpass.rewrites.written import Written
from qbpass.runtime.block_trial import ROWS
from qbpass.runtime.whole_trial import PROMPTS, whole_trial

EVERY_ROW = len(PROMPTS) * ROWS * 4


def written(bundle: Bundle, plan: RewritePlan, *emissions: Emission) -> Written:
    models = {emission: rewrite_graph(bundle.reference, plan, emission) for emission in emissions or ("guarded",)}
    return Written(bundle.reference, plan, models, "whole")


@pytest.mark.parametrize("emissions", [("guarded",), ("active", "native")])
@pytest.mark.parametrize("layout", ["qb", "pq"])
def test_what_is_right_is_unknown(tiny_bundle: Bundle, layout: str, emissions: tuple[Emission, ...]) -> None:
    plan = plan_of(tiny_bundle, layout)  # type: ignore[arg-type]
    tried = whole_trial(written(tiny_bundle, plan, *emissions), False, SPEC)
    assert (tried.evidence["verdict"], tried.evidence["rows"]) == ("unknown", EVERY_ROW)
    assert tried.ratios == {}


def test_costs_are_over_the_references_own_call(tiny_bundle: Bundle) -> None:
    ratios = whole_trial(written(tiny_bundle, plan_of(tiny_bundle)), True, SPEC).ratios
    assert set(ratios) == {"qb", "gs"}
    assert all(ratio > 0 for ratio in ratios.values())


def test_a_layout_that_is_never_active_is_found(tiny_bundle: Bundle) -> None:
    """The native graph's rows in a group are not the rows alone: this is what speculation without qbpass returns."""
    plan = plan_of(tiny_bundle)
    model = rewrite_graph(tiny_bundle.reference, replace(plan, phase_mask=8))
    native = Written(tiny_bundle.reference, plan, {"guarded": model}, "whole")
    evidence = whole_trial(native, False, SPEC).evidence
    assert evidence["verdict"] == "false"
    assert evidence["witness"]["queries"] > 1


def test_a_graph_of_another_model_is_found_in_the_prompt(tiny_bundle: Bundle) -> None:
    plan = plan_of(tiny_bundle)
    model = rewrite_graph(tiny_bundle.reference, plan)
    scale = next(tensor for tensor in model.graph.initializer if tensor.raw_data and len(tensor.raw_data) == 256)
    scale.raw_data = bytes(reversed(scale.raw_data))
    evidence = whole_trial(Written(tiny_bundle.reference, plan, {"guarded": model}, "whole"), False, SPEC).evidence
    assert evidence["verdict"] == "false"
    assert evidence["witness"]["prompt_tokens"] == PROMPTS[0]


def test_rows_run_alone_are_tried_too(tiny_bundle: Bundle) -> None:
    plan = plan_gs(tiny_bundle.reference, phase_mask=2, prefill="whole", max_queries=4)
    models: dict[Emission, onnx.ModelProto] = {"guarded": gs_graph(tiny_bundle.reference, plan)}
    assert whole_trial(Written(tiny_bundle.reference, plan, models, "whole"), False, SPEC).evidence["rows"] == EVERY_ROW


def test_a_false_decoder_leaves_no_bundle(tiny_eager: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No form of a site is at fault here: the rule on extents is lost on the way from the plan to the graph."""

    def careless(frozen: object, plan: RewritePlan, emission: Emission = "guarded") -> onnx.ModelProto:
        form = SiteForm("rows", "rows", NO_TAIL_EFFECT)
        sites = tuple(replace(entry, form=form) for entry in plan.sites)
        return rewrite_graph(frozen, replace(plan, sites=sites), emission)  # type: ignore[arg-type]

    monkeypatch.setattr("qbpass.rewrites.candidates.rewrite_graph", careless)
    monkeypatch.setattr("qbpass.rewrites.candidates.audit_written", lambda *args: {})
    machine = partial(whole_trial, spec=SPEC)
    with pytest.raises(RewriteRefused, match="the whole decoder in layout qb is false here"):
        write_bundle(load_decoder(tiny_eager), tmp_path / "bundle", "qb", SPEC, machine=machine)
    assert not (tmp_path / "bundle").exists()
