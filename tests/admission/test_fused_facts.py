"""What a report knows of a fused attention is what its graph was built from."""

from __future__ import annotations

import pytest
from fused_graphs import Fused, fused_decoder, only_report
from hypothesis import given, settings
from hypothesis import strategies as st

from qbpass.admission import admit
from qbpass.admission.facts import AttentionFacts


def facts_of(layer: Fused, opset: int | None = None) -> AttentionFacts:
    facts = only_report(layer, opset=opset).facts
    assert facts is not None
    return facts


def numbers(facts: AttentionFacts) -> tuple[object, ...]:
    return facts.heads, facts.kv_heads, facts.head_dim, facts.value_dim


@settings(max_examples=25, deadline=None)
@given(
    kv_heads=st.integers(1, 4),
    group=st.integers(1, 4),
    head_dim=st.integers(1, 12),
    packed=st.sampled_from(["none", "qkv"]),
)
def test_group_query_attention_gives_back_its_heads(kv_heads: int, group: int, head_dim: int, packed: str) -> None:
    facts = facts_of(Fused(heads=kv_heads * group, kv_heads=kv_heads, head_dim=head_dim, packed=packed))
    assert numbers(facts) == (kv_heads * group, kv_heads, head_dim, head_dim)
    assert facts.scale == pytest.approx(head_dim**-0.5)
    assert ("packed_qkv" in facts.tensors) == (packed == "qkv") == facts.features.get("packed_qkv", False)


@settings(max_examples=25, deadline=None)
@given(
    heads=st.integers(1, 5),
    head_dim=st.integers(1, 9),
    value_dim=st.integers(1, 9),
    form=st.sampled_from(["none", "qkv", "kv", "outside"]),
)
def test_multi_head_attention_gives_back_its_heads(heads: int, head_dim: int, value_dim: int, form: str) -> None:
    packed, joined = ("none", "outside") if form == "outside" else (form, "inside")
    layer = Fused("mha", heads=heads, head_dim=head_dim, value_dim=value_dim, packed=packed, joined=joined)
    facts = facts_of(layer)
    packs_values = packed != "none"  # as wide as the keys, then
    assert numbers(facts) == (heads, heads, head_dim, head_dim if packs_values else value_dim)
    assert {part for part in facts.tensors if part.startswith("packed")} == ({f"packed_{packed}"} - {"packed_none"})


@settings(max_examples=25, deadline=None)
@given(
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    head_dim=st.integers(1, 9),
    value_dim=st.integers(1, 9),
    rank=st.sampled_from([3, 4]),
    joined=st.sampled_from(["inside", "outside"]),
)
def test_onnx_attention_gives_back_its_heads(
    kv_heads: int, group: int, head_dim: int, value_dim: int, rank: int, joined: str
) -> None:
    heads = kv_heads * group
    rank = 4 if joined == "outside" else rank  # a joined cache has its heads on an axis of their own
    facts = facts_of(Fused("onnx", heads, kv_heads, head_dim, value_dim, rank=rank, joined=joined))
    assert numbers(facts) == (heads, kv_heads, head_dim, value_dim)
    assert facts.features.get("rank_3", False) == (rank == 3)


@pytest.mark.parametrize("value_dim", [8, 12])
def test_attention_with_its_projections_inside_gives_back_its_heads(value_dim: int) -> None:
    widths = {} if value_dim == 8 else {"qkv_hidden_sizes": [32, 32, 4 * value_dim]}
    facts = facts_of(Fused("ms", value_dim=value_dim, joined="nowhere", attributes=widths))
    assert numbers(facts) == (4, 4, 8, value_dim)
    assert facts.tensors["weights"] in facts.shapes
    assert facts.features["projections_inside"]


def test_a_stacked_past_is_said_to_be_one() -> None:
    facts = facts_of(Fused("ms", attributes={"unidirectional": 1}))
    assert facts.features["stacked_past"]
    assert facts.shapes[facts.tensors["past"]] == (2, 1, 4, "past", 8)
    assert facts.shapes[facts.tensors["present"]] == (2, 1, 4, "past + queries", 8)


@pytest.mark.parametrize("operator", ["gqa", "mha", "onnx", "ms"])
def test_a_scale_of_its_own_is_read_and_an_absent_one_is_the_usual(operator: str) -> None:
    assert facts_of(Fused(operator, attributes={"scale": 0.75})).scale == 0.75
    assert facts_of(Fused(operator)).scale == pytest.approx(8**-0.5)


def test_com_microsoft_takes_a_scale_of_zero_for_none() -> None:
    assert facts_of(Fused(attributes={"scale": 0.0})).scale == pytest.approx(8**-0.5)


def test_every_tensor_has_its_part_its_shape_and_its_type() -> None:
    facts = facts_of(Fused(extras={"cos_cache": (32, 4), "sin_cache": (32, 4)}, attributes={"do_rotary": 1}))
    shapes = {part: facts.shapes[name] for part, name in facts.tensors.items()}
    keys = (1, 2, "past + queries", 8)
    assert shapes == {
        "q": (1, "queries", 32),
        "k": (1, "queries", 16),
        "v": (1, "queries", 16),
        "past_key": (1, 2, "past", 8),
        "past_value": (1, 2, "past", 8),
        "present_key": keys,
        "present_value": keys,
        "seqlens_k": (1,),
        "total_sequence_length": (),
        "cos_cache": (32, 4),
        "sin_cache": (32, 4),
        "output": (1, "queries", 32),
    }
    types = {part: facts.dtypes[name] for part, name in facts.tensors.items()}
    assert types.pop("seqlens_k") == types.pop("total_sequence_length") == "int32"
    assert set(types.values()) == {"float32"}


def test_only_what_is_turned_on_is_a_feature() -> None:
    assert facts_of(Fused()).features == {"causal": True}
    turned_on = {"do_rotary": 1, "rotary_interleaved": 1, "softcap": 30.0, "local_window_size": 4}
    layer = Fused(packed="qkv", extras={"cos_cache": (9, 4), "sin_cache": (9, 4)}, attributes=turned_on)
    assert facts_of(layer).features == {
        "causal": True,
        "packed_qkv": True,
        "do_rotary": True,
        "rotary_interleaved": True,
        "softcap": 30.0,
        "local_window_size": 4,
    }


def test_keys_repeated_before_the_operator_are_told_from_the_caches_heads() -> None:
    """torch writes the repetition in front of ONNX's Attention, which then reads one KV head for each query head."""
    decoder = fused_decoder(Fused("onnx", heads=4, kv_heads=2, joined="outside", added="causal"))
    graph = decoder.model.graph
    node = next(node for node in graph.node if node.op_type == "Attention")
    copies = [node.input[1], node.input[2]]
    for place, source in enumerate(copies, 1):
        repeat = type(node)(op_type="Concat", input=[source, source], output=[f"twice{place}"])
        repeat.attribute.add(name="axis", i=1, type=2)
        node.input[place] = f"twice{place}"
        graph.node.insert(list(graph.node).index(node), repeat)
        node = next(node for node in graph.node if node.op_type == "Attention")
    (report,) = admit(decoder).sites
    assert report.facts is not None
    assert (report.layer, report.facts.heads, report.facts.kv_heads) == (0, 4, 2)
    assert report.facts.features["kv_heads_read"] == 4


@pytest.mark.parametrize("name", ["num_heads", "kv_num_heads"])
@pytest.mark.parametrize("value", [-4, 0, 4.0, "four", [4]])
def test_a_damaged_head_count_is_an_unknown_one(name: str, value: object) -> None:
    report = only_report(Fused(attributes={name: value}))
    assert "UNKNOWN_SHAPE" in [diagnostic.code for diagnostic in report.diagnostics]
