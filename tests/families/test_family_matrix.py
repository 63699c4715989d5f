"""Every attention of every family is found and answered for, by each exporter that writes the family.

Graphs are made here from transformers' own classes. Expected answers come from the architecture (expected.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from expected import ATTENTIONS, FUSED_EXPORTERS, GRAPHS, NOT_EXPORTED, NOT_LOADED, expected
from family_graphs import EXPORTERS, QUICK, family_graph
from family_models import FAMILIES, build, config_of, torch
from onnxruntime import InferenceSession
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph
from torchscript_export import write_torchscript

from qbpass.admission import admit
from qbpass.admission.report import AdmissionReport
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ExportError, ModelFileError
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_graph
from qbpass.models.session import SessionSpec

ATTENTION_LAYERS = {"full_attention", "sliding_attention", "hybrid"}  # transformers' names, in config.layer_types
STATEFUL = "linear_attention"  # the kind of what is found and is a layer with a state, no attention


def cases() -> list[Any]:
    return [
        pytest.param(family, exporter, id=f"{family}-{exporter}", marks=[pytest.mark.slow] * _is_slow(family, exporter))
        for family in ATTENTIONS
        for exporter in EXPORTERS
        if (family, exporter) not in NOT_EXPORTED
    ]


def _is_slow(family: str, exporter: str) -> bool:
    return EXPORTERS[exporter].dynamo and family not in QUICK[exporter]


@pytest.mark.parametrize(("family", "exporter"), cases())
def test_every_attention_is_found_and_answered_for(family: str, exporter: str, tmp_path: Path) -> None:
    decoder = load_graph(family_graph(family, exporter))
    answered(admit(decoder), family, exporter)
    if family in NOT_LOADED:
        with pytest.raises(ModelFileError, match="could not load"):
            frozen(decoder, tmp_path)
    else:
        answered(admit(frozen(decoder, tmp_path)), family, exporter)


def answered(report: AdmissionReport, family: str, exporter: str) -> None:
    fused = exporter in FUSED_EXPORTERS
    attentions = [site for site in report.sites if site.kind != STATEFUL]
    assert {site.kind for site in attentions} == {"onnx_attention" if fused else "decomposed"}
    found = [frozenset(diagnostic.code for diagnostic in site.diagnostics) for site in attentions]
    assert found == expected(family, exporter), report.to_json()
    assert {diagnostic.code for diagnostic in report.graph_diagnostics} == GRAPHS.get(family, set()), report.to_json()


def frozen(decoder: Decoder, folder: Path) -> Decoder:
    return freeze(decoder, folder / "frozen", SessionSpec(threads=1))


@pytest.mark.parametrize("family", ATTENTIONS)
def test_the_table_has_a_row_for_each_attention_layer_of_the_config(family: str) -> None:
    assert len(ATTENTIONS[family]) == attention_layers(config_of(FAMILIES[family], "eager")) > 0


def attention_layers(config: Any) -> int:
    if config.is_encoder_decoder:
        return 2 * int(config.decoder_layers)  # self-attention and cross-attention
    kinds = getattr(config, "layer_types", None)
    return int(config.num_hidden_layers) if kinds is None else sum(kind in ATTENTION_LAYERS for kind in kinds)


@pytest.mark.parametrize(("family", "exporter"), NOT_EXPORTED)
def test_a_family_is_left_out_only_where_there_is_no_graph_to_look_at(family: str, exporter: str) -> None:
    of_transformers, of_exporters, of_graphs = ValueError, (ExportError, AssertionError), (Fail, InvalidGraph)
    with pytest.raises((of_transformers, *of_exporters, *of_graphs)):
        InferenceSession(str(family_graph(family, exporter)), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "gpt_oss"])
def test_a_router_softmax_is_no_attention(family: str) -> None:
    decoder = load_graph(family_graph(family, "torchscript-eager"))
    softmaxes = [node for node in decoder.model.graph.node if node.op_type == "Softmax"]
    assert len(softmaxes) == 4  # two layers, each with an attention and a router
    assert len(admit(decoder).sites) == 2


class PoolingHead(torch.nn.Module):
    """Adds to each row a mean of all rows, weighted by a softmax; `latent` is what the rows are scored with."""

    def __init__(self, head: torch.nn.Module, width: int, queries: int) -> None:
        super().__init__()
        self.head = head
        self.latent = torch.nn.Parameter(torch.randn(queries, width))
        self.key, self.value = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        scores = self.latent @ self.key(hidden).transpose(-1, -2)
        pooled = torch.softmax(scores, dim=-1) @ self.value(hidden)
        return self.head(hidden + pooled.mean(dim=1, keepdim=True))


@pytest.mark.parametrize("queries", [1, 4])
def test_a_pooling_softmax_is_no_attention(queries: int, tmp_path: Path) -> None:
    model = build("llama")
    model.lm_head = PoolingHead(model.lm_head, model.config.hidden_size, queries)
    write_torchscript(model, tmp_path)
    decoder = load_graph(tmp_path / "model.onnx")
    softmaxes = [node for node in decoder.model.graph.node if node.op_type == "Softmax"]
    assert len(softmaxes) == 3
    report = admit(decoder)
    assert [(site.layer, site.admitted) for site in report.sites] == [(0, True), (1, True)]
