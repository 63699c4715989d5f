"""Discovery reads back what a graph was built from."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from site_graphs import Knobs, make_decoder

from qbpass.admission import admit, discover
from qbpass.admission.site import AttentionSite

SNAPSHOT = """\
name: attention.0
kind: decomposed
layer: 0
heads: 4
kv_heads: 2
head_dim: 8
value_dim: 8
elem_type: 1
scale: 0.3535533845424652
q: l0.q
k: present.0.key
v: present.0.value
mask: mask
output: l0.output
past_key: past.0.key
past_value: past.0.value
new_key: l0.new_key
new_value: l0.new_value
present_key: present.0.key
present_value: present.0.value
nodes.key_path: l0.k.wide l0.k.copies l0.k.all l0.k_turned
nodes.qk: l0.qk
nodes.score_path: l0.scaled l0.masked0
nodes.softmax: l0.softmax
nodes.prob_path: l0.is_nan l0.guarded
nodes.av: l0.output
nodes.value_path: l0.v.wide l0.v.copies l0.v.all
nodes.softmax_parts:
old_key: None
old_value: None
key_axes: (0, 1, 2, 3)
value_axes: (0, 1, 2, 3)
"""


def only_site(knobs: Knobs) -> AttentionSite:
    (report,) = discover(make_decoder(knobs))
    assert report.site is not None
    return report.site


def dump(site: AttentionSite) -> str:
    lines = []
    for field in dataclasses.fields(site):
        value = getattr(site, field.name)
        if field.name == "nodes":
            for part in dataclasses.fields(value):
                names = getattr(value, part.name)
                lines.append(f"nodes.{part.name}: {names if isinstance(names, str) else ' '.join(names)}".rstrip())
        elif field.name not in ("shapes", "sizes", "types", "key_steps", "value_steps", "fused"):
            lines.append(f"{field.name}: {value}")
    return "\n".join(lines) + "\n"


def test_a_discovered_site_names_every_tensor_and_node() -> None:
    assert dump(only_site(Knobs(product="matmul", weights="nan_guard"))) == SNAPSHOT


def test_the_site_carries_the_shapes_of_its_tensors_by_name() -> None:
    site = only_site(Knobs())
    assert site.shapes == {
        "l0.q": (1, 4, "queries", 8),
        "present.0.key": (1, 2, "past + queries", 8),
        "present.0.value": (1, 2, "past + queries", 8),
        "mask": ("queries", "past + queries"),
        "l0.output": (1, 4, "queries", 8),
    }


@settings(max_examples=25, deadline=None)
@given(
    kv_heads=st.integers(1, 5),
    group=st.integers(1, 5),
    head_dim=st.integers(1, 12),
    value_dim=st.integers(1, 12),
    layers=st.integers(1, 3),
    product=st.sampled_from(["fused", "matmul"]),
)
def test_discovery_reads_back_heads_dimensions_and_scale(
    kv_heads: int, group: int, head_dim: int, value_dim: int, layers: int, product: str
) -> None:
    knobs = Knobs(layers, kv_heads * group, kv_heads, head_dim, value_dim, product=product)
    reports = discover(make_decoder(knobs))
    assert [report.layer for report in reports] == list(range(layers))
    for report in reports:
        site = report.site
        assert site is not None
        assert (site.heads, site.kv_heads, site.group) == (knobs.heads, kv_heads, group)
        assert (site.head_dim, site.value_dim, site.elem_type) == (head_dim, value_dim, TensorProto.FLOAT)
        assert site.scale == pytest.approx(head_dim**-0.5, rel=1e-6)  # the graph holds it as float32


def test_an_empty_key_path_is_a_product_over_the_cache_itself() -> None:
    nodes = only_site(Knobs(heads=2, kv_heads=2, repeat="none")).nodes
    assert nodes.key_path == nodes.value_path == ()


def test_a_scale_folded_into_the_keys_counts() -> None:
    assert only_site(Knobs(repeat="scaled")).scale == pytest.approx(0.5 * 8**-0.5, rel=1e-6)


def test_a_site_without_mask_has_none() -> None:
    assert only_site(Knobs(terms="none")).mask is None


def test_a_router_is_no_attention() -> None:
    assert [report.layer for report in discover(make_decoder(Knobs(router=True)))] == [0]


def test_attention_of_no_layer_comes_last_under_its_own_name() -> None:
    reports = discover(make_decoder(Knobs(layers=2, cross="foreign")))
    assert [(report.name, report.layer) for report in reports] == [
        ("attention.0", 0),
        ("attention.1", 1),
        ("attention.x.softmax", -1),
    ]


def test_two_attentions_over_one_kv_pair_have_two_names() -> None:
    reports = discover(make_decoder(Knobs(sites_per_pair=2)))
    assert [report.name for report in reports] == ["attention.0", "attention.0.2"]
    assert [report.site.name for report in reports if report.site] == ["attention.0", "attention.0.2"]


def test_fused_attention_is_found_inside_a_control_flow_body() -> None:
    decoder = make_decoder(Knobs(attention="gqa"))
    graph = decoder.model.graph
    fused = next(node for node in graph.node if node.op_type == "GroupQueryAttention")
    branch = type(graph)(name="then", node=[fused])
    branch.output.extend([type(graph.output[0])(name=fused.output[0])])
    guard = type(fused)(op_type="If", input=["input_ids"], output=list(fused.output))
    attribute = guard.attribute.add(name="then_branch", type=5)
    attribute.g.CopyFrom(branch)
    fused.CopyFrom(guard)
    (report,) = discover(decoder)
    assert (report.kind, report.layer, report.diagnostics[0].code) == ("gqa", 0, "FUSED_ATTENTION")


def test_a_cache_that_stacks_keys_and_values_is_tied_to_its_attention() -> None:
    decoder = make_decoder(Knobs(stacked=True))
    (report,) = admit(decoder).sites
    assert report.layer == 0
    assert {diagnostic.code for diagnostic in report.diagnostics} == {"CONCAT_FORM", "PRESENT_READ_ELSEWHERE"}
