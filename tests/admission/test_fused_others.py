"""Fused attentions that no decoder exporter of today writes: heads and dimensions by their schemas' shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from graph_writer import GraphWriter
from onnx import TensorProto, helper

from qbpass.admission import admit
from qbpass.admission.report import SiteReport
from qbpass.models.decoder import Decoder
from qbpass.models.find_interface import find_interface

MICROSOFT = "com.microsoft"
TOKENS = "tokens"
GROUPED = {"num_heads": 4, "kv_num_heads": 2}
Shapes = dict[int, tuple[int | str, ...]]

# operator -> (attributes, shapes of operands by number, (heads, KV heads, columns of a key head, of a value head))
CASES: dict[str, tuple[str, dict[str, Any], Shapes, tuple[int, int, int, int]]] = {
    "paged": (
        "PagedAttention",
        GROUPED,
        {0: (TOKENS, 32), 1: (TOKENS, 16), 2: (TOKENS, 16), 3: (9, 16, 2, 8), 4: (9, 16, 2, 8)},
        (4, 2, 8, 8),
    ),
    "paged, packed": ("PagedAttention", GROUPED, {0: (TOKENS, 64), 3: (9, 16, 2, 8)}, (4, 2, 8, 8)),
    "paged, latent": (
        "PagedAttention",
        {"num_heads": 4, "kv_num_heads": 1, "kv_cache_layout": "LATENT", "v_head_size": 5, "scale": 0.5},
        {0: (TOKENS, 32), 1: (TOKENS, 8), 3: (9, 16, 1, 8)},
        (4, 1, 8, 5),
    ),
    "sparse, paged": ("SparsePagedAttention", GROUPED, {0: (TOKENS, 64), 3: (9, 16, 2, 8)}, (4, 2, 8, 8)),
    "sparse": ("SparseAttention", GROUPED, {0: (1, TOKENS, 64), 3: (1, 2, 32, 8)}, (4, 2, 8, 8)),
    "sparse by selection": ("DynamicSparseAttention", GROUPED, {0: (1, TOKENS, 64)}, (4, 2, 8, 8)),
    "packed": ("PackedAttention", {"num_heads": 4}, {0: (TOKENS, 24), 1: (24, 96)}, (4, 4, 8, 8)),
    "packed, wide values": (
        "PackedAttention",
        {"num_heads": 4, "qkv_hidden_sizes": [32, 32, 48]},
        {0: (TOKENS, 24), 1: (24, 112)},
        (4, 4, 8, 12),
    ),
    "packed multi-head": (
        "PackedMultiHeadAttention",
        {"num_heads": 4},
        {0: (TOKENS, 32), 1: (TOKENS, 32), 2: (TOKENS, 48)},
        (4, 4, 8, 12),
    ),
    "packed multi-head, in one": ("PackedMultiHeadAttention", {"num_heads": 4}, {0: (TOKENS, 4, 3, 8)}, (4, 4, 8, 8)),
    "one row": (
        "DecoderMaskedMultiHeadAttention",
        {"num_heads": 4},
        {0: (1, 1, 32), 1: (1, 1, 32), 2: (1, 1, 48)},
        (4, 4, 8, 12),
    ),
    "one row, in one": ("DecoderMaskedMultiHeadAttention", {"num_heads": 4}, {0: (1, 1, 96)}, (4, 4, 8, 8)),
    "one row, projecting": (
        "DecoderMaskedSelfAttention",
        {"num_heads": 4},
        {0: (1, 1, 24), 1: (24, 96), 4: (2, 1, 4, 9, 8)},
        (4, 4, 8, 8),
    ),
    "quantized": ("QAttention", {"num_heads": 4}, {0: (1, TOKENS, 24), 1: (24, 96)}, (4, 4, 8, 8)),
    "ordered": (
        "QOrderedAttention",
        {"num_heads": 4},
        {0: (1, TOKENS, 24), 5: (24, 32), 6: (24, 32), 7: (24, 48)},
        (4, 4, 8, 12),
    ),
    "decoder": ("DecoderAttention", {"num_heads": 4}, {0: (TOKENS, 1, 32), 1: (TOKENS, 1, 32)}, (4, 4, 8, 8)),
    "longformer": (
        "LongformerAttention",
        {"num_heads": 4, "window": 16},
        {0: (1, TOKENS, 32), 1: (32, 96)},
        (4, 4, 8, 8),
    ),
}
NOT_THE_CALLS_TOKENS = {name for name in CASES if name.startswith(("paged", "packed", "one row"))} | {"sparse, paged"}


def report_of(name: str) -> SiteReport:
    """The report of that operator alone, its operands inputs of the graph."""
    operator, attributes, shapes, _ = CASES[name]
    writer = GraphWriter()
    names = [f"i{number}" if number in shapes else "" for number in range(max(shapes) + 1)]
    for number, shape in shapes.items():
        writer.input(f"i{number}", TensorProto.FLOAT, *shape)
    writer.output("o", TensorProto.FLOAT)
    writer.nodes.append(helper.make_node(operator, names, ["o"], domain=MICROSOFT, **attributes))
    model = writer.model()
    (report,) = admit(Decoder(Path("other.onnx"), model, find_interface(model))).sites
    return report


@pytest.mark.parametrize("name", CASES)
def test_heads_and_dimensions_are_read_by_the_schema(name: str) -> None:
    report = report_of(name)
    facts = report.facts
    assert facts is not None
    assert (facts.heads, facts.kv_heads, facts.head_dim, facts.value_dim) == CASES[name][3]
    assert facts.scale == pytest.approx(CASES[name][1].get("scale", 8**-0.5))
    given = [diagnostic.code for diagnostic in report.diagnostics]
    assert given[0] == "FUSED_ATTENTION"
    assert "UNKNOWN_SHAPE" not in given
    assert ("QUERY_AXIS" in given) == (name in NOT_THE_CALLS_TOKENS)


def test_a_latent_page_holds_no_values() -> None:
    codes = [diagnostic.code for diagnostic in report_of("paged, latent").diagnostics]
    assert {"LATENT_KV", "VALUE_DIM"} <= set(codes)


def test_a_longformers_window_is_one() -> None:
    codes = [diagnostic.code for diagnostic in report_of("longformer").diagnostics]
    assert {"SLIDING_WINDOW", "NOT_CAUSAL"} <= set(codes)
