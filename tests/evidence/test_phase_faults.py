"""Each fault in the phase guard or a reuse check is found by a check that says what it changed; without one none is."""

from __future__ import annotations

from pathlib import Path

import pytest
from chain_models import FORMS, SPEC, chained

from qbpass.evidence.phase_checks import CHECKS, PhaseScenario
from qbpass.evidence.phase_faults import FAULTS, FaultReport, phase_faults
from qbpass.models.loading import load_decoder
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.manifest import Emit
from qbpass.runtime.graph_cache import GraphCache
from qbpass.runtime.phase_guard import PhaseGuard

BUNDLES = ("qb-guarded", "qb-specialized", "pq-guarded", "pq-specialized", "pq-widths")

#: What each fault changes where it changes anything; a bundle may show more.
CHANGES = {
    "not-restored-after-failure": {"stage"},
    "never-restored": {"stage"},
    "continuation-kept": {"stage", "rows", "kv"},
    "never-set": {"rows", "kv"},
    "set-for-observers-only": {"observer", "rows", "kv"},
    "stages-swapped": {"rows", "kv"},
    "roles-swapped": {"rows", "kv"},
    "native-forgotten": set(),
    "key-without-layout": {"memory"},
    "key-without-width": {"memory"},
    "key-without-capacity": {"memory", "kv", "rows"},
    "key-without-session": {"failed"},
}

#: Faults that every call tells of where it reaches ONNX Runtime: by the phase of a guarded graph, else by the graph.
TOLD = {
    "continuation-kept",
    "never-set",
    "set-for-observers-only",
    "stages-swapped",
    "roles-swapped",
    "native-forgotten",
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, tiny_eager: Path) -> dict[str, Bundle]:
    made: dict[str, Bundle] = {}
    emissions: tuple[Emit, ...] = ("guarded", "specialized", "widths")
    for emit in emissions:
        folder = tmp_path_factory.mktemp(emit)
        if emit != "widths":
            made[f"qb-{emit}"] = write_bundle(load_decoder(tiny_eager), folder / "qb", "qb", SPEC, emit=emit)[0]
        made[f"pq-{emit}"] = chained(folder, FORMS["rows apart"], emit=emit)
    return made


@pytest.fixture(scope="module")
def reports(bundles: dict[str, Bundle]) -> dict[str, FaultReport]:
    return {name: phase_faults(bundle, SPEC) for name, bundle in bundles.items()}


@pytest.mark.parametrize("name", BUNDLES)
def test_without_a_fault_nothing_is_found(reports: dict[str, FaultReport], name: str) -> None:
    assert reports[name].clean == ()
    assert reports[name].calls > 50


@pytest.mark.parametrize("name", BUNDLES)
def test_every_fault_is_found_by_the_checks_that_say_what_it_changes(
    reports: dict[str, FaultReport], name: str
) -> None:
    assert reports[name].passed
    told = {"guarded": {"phase"}, "specialized": {"graph"}}.get(name.split("-")[1], {"phase", "graph"})
    for result in reports[name].results:
        assert CHANGES[result.name] <= set(result.checks), result
        assert result.name not in TOLD or told & set(result.checks), result
        assert set(result.checks) <= set(CHECKS)


def test_every_fault_of_the_table_is_injected_somewhere(reports: dict[str, FaultReport]) -> None:
    injected = {result.name for report in reports.values() for result in report.results}
    assert injected == {fault.name for fault in FAULTS} == set(CHANGES)


def test_the_counts_are_those_of_the_results(reports: dict[str, FaultReport]) -> None:
    report = reports["pq-guarded"].to_json()
    assert report["faults_injected"] == report["faults_found"] == len(report["faults"]) == 11
    assert report["faults"]["key-without-layout"]["findings"][0]["check"] == "memory"


def test_a_fault_is_gone_when_its_run_is_over(bundles: dict[str, Bundle]) -> None:
    before = PhaseGuard.at, PhaseGuard.value, PhaseGuard.new_request, GraphCache.get, GraphCache.clear
    phase_faults(bundles["pq-guarded"], SPEC)
    assert before == (PhaseGuard.at, PhaseGuard.value, PhaseGuard.new_request, GraphCache.get, GraphCache.clear)
    assert PhaseScenario.over(bundles["pq-guarded"], SPEC).findings() == []


def test_a_fault_that_is_not_found_fails_the_report(reports: dict[str, FaultReport]) -> None:
    """The guard of the report itself: with the checks deaf, it does not pass."""
    deaf = [type(result)(result.name, result.what, ()) for result in reports["pq-guarded"].results]
    report = FaultReport((), 1, (*reports["pq-guarded"].results[1:], deaf[0]))
    assert not report.passed
    assert report.to_json()["faults_found"] == report.to_json()["faults_injected"] - 1
