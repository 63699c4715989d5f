"""Every attention of a plain export is admitted, before and after ONNX Runtime's own optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from qbpass.admission import admit
from qbpass.admission.report import AdmissionReport
from qbpass.models.decoder import Decoder
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec

SMOLLM2_LAYERS = 30


def admitted(decoder: Decoder) -> AdmissionReport:
    report = admit(decoder)
    assert report.admitted, report.to_json()
    assert [site.layer for site in report.sites] == [pair.layer for pair in decoder.contract.kv]
    return report


@pytest.mark.parametrize("export", ["tiny_eager", "tiny_sdpa"])
def test_a_tiny_export_is_admitted_as_exported_and_frozen(
    export: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    decoder = load_decoder(request.getfixturevalue(export))
    before = admitted(decoder)
    after = admitted(freeze(decoder, tmp_path / "frozen", SessionSpec(threads=1)))
    for old, new in zip(before.sites, after.sites, strict=True):
        assert old.site is not None
        assert new.site is not None
        assert (old.site.heads, old.site.kv_heads, old.site.head_dim) == (
            new.site.heads,
            new.site.kv_heads,
            new.site.head_dim,
        )
        assert old.site.scale == pytest.approx(new.site.scale, rel=1e-6)


@pytest.mark.parametrize(("export", "guard"), [("tiny_eager", []), ("tiny_sdpa", ["IsNaN", "Where"])])
def test_the_probability_path_is_what_the_exporter_wrote(
    export: str, guard: list[str], request: pytest.FixtureRequest
) -> None:
    decoder = load_decoder(request.getfixturevalue(export))
    operators = {output: node.op_type for node in decoder.model.graph.node for output in node.output}
    for report in admit(decoder).sites:
        assert report.site is not None
        assert [operators[name] for name in report.site.nodes.prob_path] == guard


@pytest.mark.real_model
@pytest.mark.parametrize("export", ["smollm2_eager", "smollm2_sdpa"])
def test_every_layer_of_smollm2_is_admitted_as_exported_and_frozen(
    export: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    decoder = load_decoder(request.getfixturevalue(export))
    for report in (admitted(decoder), admitted(freeze(decoder, tmp_path / "frozen", SessionSpec(threads=1)))):
        assert len(report.sites) == SMOLLM2_LAYERS
        assert {(s.site.heads, s.site.kv_heads, s.site.head_dim) for s in report.sites if s.site} == {(9, 3, 64)}
