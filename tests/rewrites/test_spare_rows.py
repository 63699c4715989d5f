"""Where kernels refuse to multiply no rows, a segment that a call has no rows for evaluates the last one once more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from decoder_blocks import SPEC, block_target, replayed, sites_of

from qbpass.admission.calls.call import Call
from qbpass.models.loading import load_decoder
from qbpass.rewrites.address_audit import audit_site
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.extents import EVERY_ROW_EXACT, ExtentRule
from qbpass.rewrites.falsify import SiteFalsifier, Trial
from qbpass.rewrites.layouts import qb
from qbpass.rewrites.manifest import Emit
from qbpass.rewrites.plan import RewritePlan, SiteForm, SitePlan
from qbpass.rewrites.site_runner import FormNotRun
from qbpass.runtime.block_target import BlockTarget

#: No row, one row and several in the last segments; the rule below leaves blocks with one, two and four segments.
CALLS = (Call(1, 5), Call(2, 5), Call(3, 4), Call(4, 6))
FORMS = {
    "by a rule": SiteForm("rows", "batch", ExtentRule(4, (3,)), spare=True),
    "row by row": SiteForm("batch", "batch", EVERY_ROW_EXACT, spare=True),
    "keys clipped": SiteForm("batch", "batch", EVERY_ROW_EXACT, "keys", spare=True),
}


def plan(bundle: Bundle, name: str) -> RewritePlan:
    return RewritePlan("qb", 2, 4, tuple(SitePlan(site, FORMS[name]) for site in sites_of(bundle.reference)))


@pytest.mark.parametrize("name", FORMS)
def test_every_row_reads_what_it_reads_alone(tiny_bundle: Bundle, name: str) -> None:
    made = plan(tiny_bundle, name)
    assert not audit_site(tiny_bundle.reference, made, made.sites[0].site, CALLS).problems


@pytest.mark.parametrize("name", ["by a rule", "row by row"])
def test_every_row_is_the_serial_one(tiny_bundle: Bundle, name: str) -> None:
    count = replayed(tiny_bundle, block_target(tiny_bundle, plan(tiny_bundle, name)))
    assert count.equal == count.rows == 13 * (1 + 2 + 3 + 4)


def test_spare_rows_that_are_not_cut_off_are_caught(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(builder: Any, context: Any, outputs: list[Any]) -> Any:
        return builder.node("Concat", outputs, "av/all_rows", axis=2, dtype=outputs[0].dtype)

    monkeypatch.setattr(qb, "_all_rows", kept)
    made = plan(tiny_bundle, "row by row")
    assert audit_site(tiny_bundle.reference, made, made.sites[0].site, CALLS).problems


@pytest.mark.parametrize("emit", ["guarded", "specialized"])
def test_a_form_that_can_not_be_run_without_rows_is_tried_with_spare_ones(
    tiny_eager: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emit: Emit
) -> None:
    """As ONNX Runtime 1.31 has it: whatever has several segments fails, unless no segment is empty."""
    right = SiteFalsifier.trial

    def trial(self: SiteFalsifier, form: SiteForm) -> Trial:
        if form.extents.segments(self.max_queries) > 1 and not form.spare:
            raise FormNotRun("left operand cannot broadcast on dim 2")
        return right(self, form)

    monkeypatch.setattr(SiteFalsifier, "trial", trial)
    bundle, made, _ = write_bundle(load_decoder(tiny_eager), tmp_path / "bundle", "qb", SPEC, emit=emit)
    assert {entry.form.spare for entry in made.sites} == {made.segments > 1}
    tried = made.sites[0].evidence["trials"]
    if made.segments > 1:
        assert [entry["verdict"] for entry in tried[-2:]] == ["not run", "unknown"]
        assert tried[-1]["spare"] is True
        assert "spare rows" in made.text()
    count = replayed(bundle, BlockTarget.from_bundle(bundle, SPEC))
    assert count.equal == count.rows > 100


def test_where_no_rows_can_be_multiplied_nothing_is_computed_twice(tiny_bundle: Bundle) -> None:
    def names(model: onnx.ModelProto) -> set[str]:
        return {node.name for guard in model.graph.node for part in guard.attribute for node in part.g.node}

    chosen = tiny_bundle.manifest.sites[0].evidence["trials"][-1]  # of the kernels here
    own = any("own_rows" in name for name in names(onnx.ModelProto.FromString(tiny_bundle.graph())))
    assert own is chosen.get("spare", False)
    made = plan(tiny_bundle, "by a rule")
    plain = replace(made, sites=tuple(SitePlan(e.site, replace(e.form, spare=False)) for e in made.sites))
    assert any("own_rows" in name for name in names(rewrite_graph(tiny_bundle.reference, made)))
    assert not any("own_rows" in name for name in names(rewrite_graph(tiny_bundle.reference, plain)))
