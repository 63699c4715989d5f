"""What holds on one provider is falsified on the next, with a witness."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from probe_cases import SPEC, bench, grouped_core

from qbpass.admission.probes.core import QUERY_TO_BATCH, SHARED
from qbpass.admission.probes.falsify import ask
from qbpass.admission.probes.forms import SHARED_KV
from qbpass.admission.probes.replay import replay
from qbpass.admission.probes.trial import Run, Runner
from qbpass.models.session import SessionSpec

HAS_OPENVINO = "OpenVINOExecutionProvider" in onnxruntime.get_available_providers()


def test_a_core_with_shared_keys_and_values_computes_what_the_repeated_one_does() -> None:
    """Near, not to the bit: whether the bits agree is what probes ask."""
    core = grouped_core()
    assert {QUERY_TO_BATCH, SHARED} <= core.forms.keys()
    runner, call = Runner(core, SPEC), core.draw(3, 9, np.random.default_rng(0))
    exported, *others = (runner.outputs(Run((call,), form))["y"] for form in core.forms)
    for other in others:
        assert np.abs(other - exported).max() < 1e-5


@pytest.mark.skipif(not HAS_OPENVINO, reason="this ONNX Runtime lacks the OpenVINO provider")
def test_on_openvino_sharing_keys_and_values_is_false_already_for_one_row(tmp_path: Path) -> None:
    spec = SessionSpec(provider="openvino", threads=2)
    place = bench(tmp_path, spec=spec)
    core = grouped_core(9, 3, 64)
    answer = ask(core, SHARED_KV, place, Runner(core, spec))
    assert answer.record.verdict == "false"
    assert 1 in answer.record.detail["widths_differing"]
    assert set(answer.record.ran_on) == {"OpenVINOExecutionProvider"}
    assert answer.witness is not None
    found = replay(answer.witness)
    assert found.reproduced
    assert found.bytes_as_recorded
