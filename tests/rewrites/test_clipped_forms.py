"""A form that clips keys gives each row the keys, mask columns and values that it reads alone, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from decoder_blocks import block_target, replayed, sites_of

from qbpass.admission.calls.call import Call
from qbpass.rewrites import apply
from qbpass.rewrites.address_audit import audit_site
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.extents import EVERY_ROW_EXACT, NO_TAIL_EFFECT, ExtentRule
from qbpass.rewrites.layouts import qb
from qbpass.rewrites.plan import Layout, RewritePlan, SiteForm, SitePlan

CALLS = (Call(1, 5), Call(3, 4), Call(4, 6))
FORMS = {
    "qb": SiteForm("batch", "batch", EVERY_ROW_EXACT, "keys"),
    "qb, rows together": SiteForm("rows", "rows", EVERY_ROW_EXACT, "keys"),
    "qb, by a rule": SiteForm("batch_transposed", "batch", ExtentRule(4, (3,)), "keys"),
    "pq": SiteForm("rows", "batch", NO_TAIL_EFFECT, "keys"),
}


@pytest.fixture(params=["eager", "sdpa"])
def bundle(request: pytest.FixtureRequest, tiny_bundle: Bundle, tiny_sdpa_bundle: Bundle) -> Bundle:
    return tiny_bundle if request.param == "eager" else tiny_sdpa_bundle


def plan(bundle: Bundle, name: str) -> RewritePlan:
    layout: Layout = "pq" if name == "pq" else "qb"
    return RewritePlan(layout, 2, 4, tuple(SitePlan(site, FORMS[name]) for site in sites_of(bundle.reference)))


def codes(bundle: Bundle, made: RewritePlan) -> set[str]:
    return {problem.code for problem in audit_site(bundle.reference, made, made.sites[0].site, CALLS).problems}


@pytest.mark.parametrize("name", FORMS)
def test_every_row_reads_what_it_reads_alone(bundle: Bundle, name: str) -> None:
    assert codes(bundle, plan(bundle, name)) == set()


@pytest.mark.parametrize("name", ["qb", "pq"])
def test_keys_that_are_not_clipped_are_caught(tiny_bundle: Bundle, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = "pq" if name == "pq" else "qb"
    emit = apply.LAYOUT_EMITTERS[layout]

    def whole(builder: Any, context: Any) -> Any:
        return emit(builder, replace(context, form=replace(context.form, clip="values")))

    monkeypatch.setitem(apply.LAYOUT_EMITTERS, layout, whole)
    assert {"KEY_MAP", "QUERY_MAP", "MASK_MAP"} <= codes(tiny_bundle, plan(tiny_bundle, name))


def test_a_mask_that_is_not_clipped_with_its_keys_is_caught(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = qb._weights
    monkeypatch.setattr(
        qb, "_weights", lambda part, context, scores, mask: weights(part, context, scores, context.row_mask)
    )
    assert codes(tiny_bundle, plan(tiny_bundle, "qb")) == {"UNTRACED"}


def test_every_row_of_a_clipped_pq_is_the_serial_one(tiny_bundle: Bundle) -> None:
    count = replayed(tiny_bundle, block_target(tiny_bundle, plan(tiny_bundle, "pq")))
    assert count.equal == count.rows == 13 * (1 + 2 + 3 + 4)


def test_a_bundle_says_which_sites_clip_keys(tiny_bundle: Bundle) -> None:
    assert {site.clip for site in tiny_bundle.manifest.sites} == {"values"}
    assert "keys clipped" in plan(tiny_bundle, "qb").text()
    assert "keys clipped" not in replace(plan(tiny_bundle, "qb"), sites=()).text()
