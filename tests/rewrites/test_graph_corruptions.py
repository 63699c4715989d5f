"""Single-edge corruptions of admitted graphs: admission refuses them with a code, and the audit, which runs the site's
own nodes on index tensors and asks nothing of admission's reasons, finds the wrong address by itself.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest
from decoder_blocks import SPEC, sites_of
from graph_corruptions import CORRUPTIONS, SDPA_CORRUPTIONS, Corruption, Edit

from qbpass.admission.admit import admit
from qbpass.admission.calls.call import Call
from qbpass.admission.dataflow import Flow
from qbpass.admission.report import AdmissionReport
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides.exported_audit import ExportedGraph
from qbpass.models.decoder import Decoder
from qbpass.rewrites import planner
from qbpass.rewrites.bundle import Bundle, open_bundle
from qbpass.rewrites.planner import RewriteRefused, make_plan

CALLS = (Call(2, 3), Call(3, 4))
LAYER = 1  # neither the first nor the last


@cache
def sites_in(folder: Path) -> tuple[AttentionSite, ...]:
    return sites_of(open_bundle(folder).reference)


def corrupted(bundle: Bundle, corruption: Corruption) -> Decoder:
    edit = Edit(bundle.reference, sites_in(bundle.folder), LAYER)
    corruption.apply(edit)
    assert edit.model.SerializeToString() != bundle.reference.model.SerializeToString()
    return edit.decoder_now()


def codes_of(report: AdmissionReport) -> set[str]:
    return {d.code for d in (*report.graph_diagnostics, *(d for site in report.sites for d in site.diagnostics))}


def found_in(decoder: Decoder, report: AdmissionReport) -> set[str] | None:
    """What the audit finds in the corrupted layer's site, admitted or not; None where there is no site."""
    sites = [entry.site for entry in report.sites if entry.site is not None and entry.site.layer == LAYER]
    if not sites:
        return None
    audits = ExportedGraph(Flow.of(decoder)).audit(sites[0], CALLS)
    return {problem.code for audit in audits for problem in audit.problems}


def check(bundle: Bundle, corruption: Corruption) -> None:
    decoder = corrupted(bundle, corruption)
    report = admit(decoder)
    codes, found = codes_of(report), found_in(decoder, report)
    assert (corruption.code in codes) if corruption.code else not codes
    assert (corruption.problem in (found or ())) if corruption.problem else not found
    # Refused by the one, or caught by the other: no corrupted graph goes on to a falsifier.
    assert codes or found


def test_the_uncorrupted_graphs_pass_both(tiny_bundle: Bundle, tiny_sdpa_bundle: Bundle) -> None:
    for bundle in (tiny_bundle, tiny_sdpa_bundle):
        decoder = Edit(bundle.reference, sites_in(bundle.folder), LAYER).decoder_now()
        report = admit(decoder)
        assert report.admitted
        assert found_in(decoder, report) == set()


def test_there_are_many_and_each_says_what_it_breaks() -> None:
    assert len({corruption.name for corruption in CORRUPTIONS}) == len(CORRUPTIONS) >= 40
    assert all(corruption.why for corruption in (*CORRUPTIONS, *SDPA_CORRUPTIONS))


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda corruption: corruption.name)
def test_a_corrupted_eager_graph_is_refused_and_caught(tiny_bundle: Bundle, corruption: Corruption) -> None:
    check(tiny_bundle, corruption)


#: Those whose edge lies elsewhere in an sdpa export.
ON_SDPA = (
    "mask columns shifted",
    "key heads tiled",
    "key channels shifted",
    "repeated key heads swapped",
    "weights rows reversed",
)


@pytest.mark.parametrize(
    "corruption",
    [*SDPA_CORRUPTIONS, *(entry for entry in CORRUPTIONS if entry.name in ON_SDPA)],
    ids=lambda corruption: corruption.name,
)
def test_a_corrupted_sdpa_graph_is_refused_and_caught(tiny_sdpa_bundle: Bundle, corruption: Corruption) -> None:
    check(tiny_sdpa_bundle, corruption)


def test_a_graph_that_only_the_audit_catches_gets_no_plan(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    (corruption,) = (entry for entry in CORRUPTIONS if entry.code is None)
    decoder = corrupted(tiny_bundle, corruption)
    monkeypatch.setattr(planner, "SiteFalsifier", _no_falsifier)
    with pytest.raises(RewriteRefused, match=r"does not read what it must \(MASK_NOT_SERIAL: row ") as raised:
        make_plan(decoder, admit(decoder), "qb", SPEC)
    assert "\n" not in str(raised.value)
    assert {problem.code for problem in raised.value.problems} == {"MASK_NOT_SERIAL"}
    assert raised.value.problems[0].evidence["padded"] is not None


def _no_falsifier(*arguments: object) -> NoReturn:
    raise AssertionError("a falsifier was started on a graph whose addresses are wrong")
