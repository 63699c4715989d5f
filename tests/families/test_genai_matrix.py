"""Every attention in the graphs of onnxruntime-genai's builder is found, with what its operator turns on."""

from __future__ import annotations

from pathlib import Path

import pytest
from expected import FUSED
from genai_export import genai_graphs, missing_builder

from qbpass.admission import admit
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_graph
from qbpass.models.session import SessionSpec

pytestmark = pytest.mark.skipif(missing_builder() is not None, reason=missing_builder() or "")

PLAIN: list[set[str]] = [set(), set()]  # admitted by lowering
# The builder leaves Mistral's window to its runtime's cache (genai_config.json): the graph has none. Gemma 2's and
# gpt-oss's local layers have one, and a cache that drops what has left it.
EXPECTED = {
    ("llama", "fp32"): PLAIN,
    ("llama", "int4"): PLAIN,
    ("qwen2", "int4"): PLAIN,
    ("qwen3", "fp32"): PLAIN,
    ("mistral", "fp32"): PLAIN,
    ("phi3", "fp32"): PLAIN,
    ("granite", "fp32"): PLAIN,
    ("gemma2", "fp32"): [{FUSED, "SLIDING_WINDOW", "SOFTCAP"}, {FUSED, "SOFTCAP"}],
    ("gemma2", "int4"): [{FUSED, "SLIDING_WINDOW", "SOFTCAP"}, {FUSED, "SOFTCAP"}],
    ("gpt_oss", "fp32"): [{FUSED, "SLIDING_WINDOW", "SINKS"}, {FUSED, "SINKS"}],
    ("lfm2", "fp32"): [set()],
}
STATES = {"lfm2"}  # whose convolutions are layers with a state, found beside the attention
GRAPHS = {"gemma2": {"SLIDING_CACHE"}, "gpt_oss": {"SLIDING_CACHE"}, "lfm2": {"RECURRENT_STATE"}}


@pytest.fixture(scope="module")
def graphs() -> dict[tuple[str, str], Path]:
    return genai_graphs(list(EXPECTED))


@pytest.mark.parametrize(("family", "precision"), EXPECTED)
def test_every_fused_attention_is_found(
    family: str, precision: str, graphs: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    decoder = load_graph(graphs[family, precision])
    for report in (admit(decoder), admit(freeze(decoder, tmp_path / "frozen", SessionSpec(threads=1)))):
        attentions = [site for site in report.sites if site.kind == "gqa"]
        others = {diagnostic.code for site in report.sites if site.kind != "gqa" for diagnostic in site.diagnostics}
        assert [{d.code for d in site.diagnostics} for site in attentions] == EXPECTED[family, precision]
        assert others == ({"LINEAR_ATTENTION"} if family in STATES else set())
        assert {diagnostic.code for diagnostic in report.graph_diagnostics} == GRAPHS.get(family, set())
