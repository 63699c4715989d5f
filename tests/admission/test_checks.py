"""Each code is given for the graph that earns it, and for no other reason."""

from __future__ import annotations

import pytest
from site_graphs import Knobs, make_decoder

from qbpass.admission import admit, checks

ADMITTED = {
    "default": Knobs(),
    "one head for each query head": Knobs(heads=2, kv_heads=2, repeat="none"),
    "one KV head for all": Knobs(heads=4, kv_heads=1),
    "one KV head, left to broadcasting": Knobs(heads=4, kv_heads=1, repeat="none"),
    "a mask cut to the extent of the repeated keys": Knobs(slice_by_keys=True),
    "plain products": Knobs(product="matmul"),
    "guard against NaN": Knobs(product="matmul", weights="nan_guard"),
    "scale on the keys": Knobs(repeat="scaled"),
    "several layers": Knobs(layers=3),
    "a router beside it": Knobs(router=True),
    "one scale for all rows, which a rewrite computes for each row": Knobs(quantize="rows"),
    "a batch left open, of which one stream is fed": Knobs(batch="batch"),
}

REFUSED = [
    ("NO_ATTENTION_FOUND", Knobs(layers=0)),
    ("KV_WITHOUT_SITE", Knobs(attention="linear")),
    ("LINEAR_ATTENTION", Knobs(linear_layer=True)),
    ("NO_PAST", Knobs(past=False)),
    ("DYNAMIC_QUANTIZATION", Knobs(quantize="flat")),
    ("UNKNOWN_SHAPE", Knobs(query_heads="heads")),
    ("NO_KV_PAIR", Knobs(cross="foreign")),
    ("CROSS_ATTENTION", Knobs(cross="states")),
    ("CROSS_ATTENTION", Knobs(cross="cache")),
    ("LATENT_KV", Knobs(repeat="latent")),
    ("NOT_CAUSAL", Knobs(terms="none")),
    ("NOT_CAUSAL", Knobs(terms="indicator")),
    ("NOT_CAUSAL", Knobs(terms="one_late")),
    ("NOT_CAUSAL", Knobs(terms="ready_made")),
    ("SPELLED_OUT_SOFTMAX", Knobs(softmax="spelled_out")),
    ("SPELLED_OUT_SOFTMAX", Knobs(softmax="definition_over_queries")),
    ("PRODUCT_OPERATOR", Knobs(product="einsum")),
    ("CACHE_OPERANDS", Knobs(values="key")),
    ("PRODUCT_FORM", Knobs(product="rank3")),
    ("STREAMS", Knobs(batch=2, terms="indicator")),
    ("QUERY_AXIS", Knobs(rows=1, terms="indicator")),
    ("QUERY_AXIS", Knobs(query_rows="first", terms="none")),
    ("GQA_RATIO", Knobs(heads=3, kv_heads=2, repeat="uneven")),
    ("HEAD_DIM_MISMATCH", Knobs(repeat="narrow")),
    ("VALUE_DIM", Knobs(value_dim=4)),
    ("DTYPE_QUERY_KEY", Knobs(dtype="float64")),
    ("CONCAT_FORM", Knobs(join="new_first")),
    ("PAST_SHARED", Knobs(sites_per_pair=2)),
    ("PRESENT_READ_ELSEWHERE", Knobs(leak="present")),
    ("INTERIOR_READ_ELSEWHERE", Knobs(leak="probabilities")),
    ("STRIDE_LEGALITY", Knobs(repeat="tile")),
    ("STRIDE_LEGALITY", Knobs(repeat="rolled_rows")),
    ("STRIDE_LEGALITY", Knobs(repeat="shifted")),
    ("KEY_EXTENT", Knobs(terms="capacity")),
    ("MASK_FORM", Knobs(terms="per_head")),
    ("MASK_FORM", Knobs(terms="one_column")),
    ("MASK_FORM", Knobs(terms="foreign_rows")),
    ("MASK_FORM", Knobs(terms="two")),
    ("BIAS_NOT_MASK", Knobs(terms="alibi")),
    ("BIAS_NOT_MASK", Knobs(terms="float_input")),
    ("BIAS_NOT_MASK", Knobs(terms="small_numbers")),
    ("SLIDING_WINDOW", Knobs(terms="window")),
    ("SINKS", Knobs(scores="sinks")),
    ("SOFTCAP", Knobs(scores="softcap")),
    ("SCORE_OP", Knobs(scores="where", terms="none")),
    ("SCORE_OP", Knobs(scores="twice")),
    ("SCORE_OP", Knobs(weights="halved")),
    ("SOFTMAX_AXIS", Knobs(softmax="over_queries")),
]


def given_codes(knobs: Knobs) -> set[str]:
    report = admit(make_decoder(knobs))
    return {d.code for d in (*report.graph_diagnostics, *(d for site in report.sites for d in site.diagnostics))}


@pytest.mark.parametrize("name", ADMITTED)
def test_a_plain_attention_is_admitted(name: str) -> None:
    report = admit(make_decoder(ADMITTED[name]))
    assert report.admitted, report.to_json()
    assert [site.layer for site in report.sites] == list(range(ADMITTED[name].layers))


@pytest.mark.parametrize(("code", "knobs"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_turned_knob_gives_its_code_and_no_other(code: str, knobs: Knobs) -> None:
    assert given_codes(knobs) == {code}


# A quantized cache is never the only reason; tests/admission/test_fused_features.py and test_quantized_kv.py have it.
# QUANTIZED_KV beside others; fused operators in test_fused_features.py.
EARNED_ELSEWHERE = {"QUANTIZED_KV", "FUSED_ATTENTION", "FUSED_FEATURE"}


def test_every_code_has_a_graph_that_earns_it() -> None:
    assert {code for code, _ in REFUSED} | EARNED_ELSEWHERE == {module.CODE for module in checks.ALL}


def test_every_check_is_run() -> None:
    checking = {module.check for module in checks.ALL if hasattr(module, "check")}
    assert checking == {*checks.FINDING_CHECKS, *checks.SITE_CHECKS, *checks.GRAPH_CHECKS}


def test_a_refusal_names_the_site_and_its_evidence_is_plain_data() -> None:
    (site,) = admit(make_decoder(Knobs(repeat="tile"))).sites
    (diagnostic,) = site.diagnostics
    assert diagnostic.site == site.name == "attention.0"
    assert diagnostic.evidence == {
        "source": "present.0.key",
        "sink": "l0.k",
        "shape": [1, 4, 7, 8],
        "expected": [1, 4, 7, 8],
        "kv_heads_read": [0, 1, 0, 1],
    }


def test_cross_attention_leaves_the_decoders_own_attention_admitted() -> None:
    report = admit(make_decoder(Knobs(cross="foreign")))
    assert [site.admitted for site in report.sites] == [True, False]
    assert not report.admitted
