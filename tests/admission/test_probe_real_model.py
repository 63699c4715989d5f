"""The real export: every attention core is one kind, and whatever is false replays."""

from __future__ import annotations

from pathlib import Path

import pytest
from probe_cases import bench

from qbpass.admission.dataflow import Flow
from qbpass.admission.probes.collect import collect
from qbpass.admission.probes.core import SHARED, core_cases
from qbpass.admission.probes.falsify import ask
from qbpass.admission.probes.feeds import decoder_feeds
from qbpass.admission.probes.observe import RunnableGraph, observe
from qbpass.admission.probes.padding import PADDING
from qbpass.admission.probes.replay import replay
from qbpass.admission.probes.rows import ROWS
from qbpass.admission.probes.trial import Runner
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec

SPEC = SessionSpec(threads=2)


@pytest.mark.real_model
def test_thirty_cores_are_one_kind_and_what_is_false_replays(smollm2_eager: Path, tmp_path: Path) -> None:
    frozen = freeze(load_decoder(smollm2_eager), tmp_path / "frozen", SPEC)
    graph = RunnableGraph("frozen", frozen.model, frozen.weights, lambda call: decoder_feeds(frozen, call))
    seen = observe(graph, SPEC)
    (core,), left = core_cases(Flow.of(frozen), graph, seen)
    assert (core.count, left) == (30, [])
    assert SHARED in core.forms
    cases, _ = collect(graph, seen)
    weighed = next(case for case in cases if case.operator == "MatMul" and case.has_keys)
    assert weighed.count == 30
    place = bench(tmp_path / "cache", spec=SPEC)
    for case in (core, weighed):
        for probe in (ROWS, PADDING):
            answer = ask(case, probe, place, Runner(case, SPEC))
            assert answer.record.trials > 0
            if answer.witness is not None:
                assert replay(answer.witness).reproduced
