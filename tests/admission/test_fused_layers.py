"""Which layer a fused attention belongs to is found by dataflow, whoever joins the past with the new rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fused_graphs import Fused, codes, fused_decoder
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from qbpass.admission import admit
from qbpass.models.decoder import Decoder
from qbpass.models.find_interface import find_interface
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec

CAUSAL = {"is_causal": 1}
ONE_WAY = {"unidirectional": 1}


def names(decoder: Decoder) -> list[tuple[str, str, int]]:
    return [(report.name, report.kind, report.layer) for report in admit(decoder).sites]


def only(graph: GraphProto, operator: str) -> NodeProto:
    (node,) = (node for node in graph.node if node.op_type == operator)
    return node


def in_front(graph: GraphProto, operator: str, *added: NodeProto) -> NodeProto:
    """Writes nodes in front of the only one of that operator, and returns that one."""
    place = list(graph.node).index(only(graph, operator))
    for offset, new in enumerate(added):
        graph.node.insert(place + offset, new)
    return only(graph, operator)


def constant(graph: GraphProto, name: str, values: object) -> str:
    graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
    return name


@pytest.mark.parametrize(
    "layer",
    [
        Fused(),
        Fused("mha", attributes=ONE_WAY),
        Fused("mha", added="causal", joined="outside"),
        Fused("onnx", attributes=CAUSAL),
        Fused("onnx", added="causal", joined="outside"),
    ],
    ids=lambda layer: f"{layer.operator} {layer.joined}",
)
def test_each_layer_has_its_own_attention(layer: Fused) -> None:
    kind = {"gqa": "gqa", "mha": "mha", "onnx": "onnx_attention"}[layer.operator]
    assert names(fused_decoder(layer, layer, layer)) == [(f"attention.{n}", kind, n) for n in range(3)]


def test_fused_and_decomposed_attentions_are_reported_in_layer_order() -> None:
    plain = Fused("decomposed", added="causal")
    decoder = fused_decoder(Fused(), plain, Fused("mha", attributes=ONE_WAY), plain)
    kinds = ["gqa", "decomposed", "mha", "decomposed"]
    assert names(decoder) == [(f"attention.{n}", kind, n) for n, kind in enumerate(kinds)]
    assert [report.layouts for report in admit(decoder).sites] == [("qb", "pq")] * 4


@pytest.mark.parametrize("layer", [Fused(packed="qkv"), Fused("mha", added="window"), Fused("onnx", added="causal")])
def test_a_frozen_graph_says_what_the_exported_one_says(layer: Fused, tmp_path: Path) -> None:
    onnx.save(fused_decoder(layer, layer).model, tmp_path / "model.onnx")
    exported = load_decoder(tmp_path / "model.onnx")
    frozen = freeze(exported, tmp_path / "frozen", SessionSpec("cpu", 1))
    said, again = ([(r.name, r.kind, codes(r)) for r in admit(decoder).sites] for decoder in (exported, frozen))
    assert said == again
    assert len(said) == 2


def test_a_cache_joined_outside_is_named_by_the_graphs_own_tensors() -> None:
    (report,) = admit(fused_decoder(Fused("onnx", added="causal", joined="outside"))).sites
    assert report.facts is not None
    tensors = dict(report.facts.tensors)
    assert tensors["k"] == tensors["present_key"] == "present.0.key"
    assert (tensors["past_key"], tensors["past_value"]) == ("past.0.key", "past.0.value")


def test_a_stacked_cache_is_its_layers() -> None:
    decoder = fused_decoder(Fused("ms", attributes=ONE_WAY), Fused("ms", attributes=ONE_WAY))
    assert names(decoder) == [("attention.0", "ms_attention", 0), ("attention.1", "ms_attention", 1)]


def test_a_stack_that_is_made_of_two_inputs_and_split_again_is_still_the_layers() -> None:
    """As onnxruntime's converters leave GPT-2 where the cache's inputs are keys and values apart."""
    decoder = fused_decoder(Fused("ms", attributes=ONE_WAY))
    graph = decoder.model.graph
    del graph.input[2:]
    del graph.output[1:]
    for name in ("past_key", "past_value"):
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, "past", 8]))
    axis = constant(graph, "axis_0", [0])
    wide = [helper.make_node("Unsqueeze", [name, axis], [f"{name}.wide"]) for name in ("past_key", "past_value")]
    stack = helper.make_node("Concat", [node.output[0] for node in wide], ["stack"], axis=0)
    node = in_front(graph, "Attention", *wide, stack)
    node.input[4] = "stack"
    node.output[1] = "presents"
    halves = helper.make_node("Split", ["presents"], ["half.key", "half.value"], axis=0, num_outputs=2)
    apart = [helper.make_node("Squeeze", [f"half.{x}", axis], [f"present_{x}"]) for x in ("key", "value")]
    graph.node.extend([halves, *apart])
    for x in ("key", "value"):
        graph.output.append(
            helper.make_tensor_value_info(f"present_{x}", TensorProto.FLOAT, [1, 4, "past + queries", 8])
        )
    (report,) = admit(Decoder(decoder.path, decoder.model, find_interface(decoder.model))).sites
    assert (report.name, report.kind, codes(report)) == ("attention.0", "ms_attention", ["FUSED_ATTENTION"])


def test_attention_over_another_streams_cache_is_cross_attention() -> None:
    """As onnxruntime-genai writes Whisper's decoder: keys and values are inputs that nothing is appended to."""
    decoder = with_cross_attention(whole=True)
    assert names(decoder) == [("attention.0", "mha", 0), ("cross_attention.0", "mha", 0)]
    own, cross = admit(decoder).sites
    assert codes(own) == []
    assert codes(cross) == ["FUSED_ATTENTION", "CROSS_ATTENTION"]
    assert cross.diagnostics[1].evidence["stream"] == "cross.key"


def test_attention_over_another_streams_states_is_cross_attention() -> None:
    decoder = with_cross_attention(whole=False)
    own, cross = admit(decoder).sites
    assert (own.name, codes(own)) == ("attention.0", [])
    assert (cross.name, cross.layer) == ("cross_attention.cross", -1)
    assert codes(cross) == ["FUSED_ATTENTION", "CROSS_ATTENTION"]


def with_cross_attention(whole: bool) -> Decoder:
    """A decoder whose hidden states attend to an encoder's keys (whole), or to its hidden states."""
    decoder = fused_decoder(Fused("mha", attributes=ONE_WAY))
    graph = decoder.model.graph
    made: list[NodeProto] = []
    if whole:
        keys = [helper.make_tensor_value_info(f"cross.{x}", TensorProto.FLOAT, [1, 4, 30, 6]) for x in ("key", "value")]
        graph.input.extend(keys)
    else:
        graph.input.append(helper.make_tensor_value_info("states", TensorProto.FLOAT, [1, 30, 24]))
        weight = numpy_helper.from_array(np.ones((24, 24), np.float32), "of_states")
        graph.initializer.append(weight)
        made = [helper.make_node("MatMul", ["states", "of_states"], [f"cross.{x}"]) for x in ("key", "value")]
    last = graph.node[-1]
    attention = helper.make_node(
        "MultiHeadAttention",
        [last.input[0], "cross.key", "cross.value"],
        ["cross"],
        domain="com.microsoft",
        num_heads=4,
    )
    last.input[0] = "cross"
    place = len(graph.node) - 1
    for offset, node in enumerate((*made, attention)):
        graph.node.insert(place + offset, node)
    return Decoder(decoder.path, decoder.model, find_interface(decoder.model))


def test_self_attention_above_a_fused_cross_attention_is_none() -> None:
    """Its keys are projected from hidden states that the other stream has a part in; they are its own all the same."""
    decoder = fused_decoder(*[Fused("mha", joined="nowhere", attributes=ONE_WAY)] * 2)
    graph = decoder.model.graph
    graph.input.append(helper.make_tensor_value_info("states", TensorProto.FLOAT, [1, 30, 24]))
    cross = helper.make_node(
        "MultiHeadAttention", ["l0.out", "states", "states"], ["cross"], domain="com.microsoft", num_heads=4
    )
    place = next(place for place, node in enumerate(graph.node) if "l0.out" in node.input)
    for node in graph.node:
        node.input[:] = ["cross" if name == "l0.out" else name for name in node.input]
    graph.node.insert(place, cross)
    assert [report.name for report in admit(decoder).sites] == [
        "attention.l0.mha",
        "cross_attention.cross",
        "attention.l1.mha",
    ]


def test_attention_that_reads_no_cache_says_so() -> None:
    decoder = fused_decoder(Fused("mha", joined="nowhere", attributes=ONE_WAY))
    (report,) = admit(decoder).sites
    assert (report.name, report.layer) == ("attention.l0.mha", -1)
    assert codes(report) == ["FUSED_ATTENTION", "NO_KV_PAIR"]


def test_keys_projected_from_the_cache_are_latents() -> None:
    decoder = fused_decoder(Fused("mha", added="causal", joined="outside"))
    graph = decoder.model.graph
    graph.initializer.append(numpy_helper.from_array(np.ones((8, 8), np.float32), "up"))
    up = [helper.make_node("MatMul", [f"present.0.{x}", "up"], [f"up.{x}"]) for x in ("key", "value")]
    node = in_front(graph, "MultiHeadAttention", *up)
    node.input[1], node.input[2] = "up.key", "up.value"
    (report,) = admit(Decoder(decoder.path, decoder.model, find_interface(decoder.model))).sites
    assert (report.layer, codes(report)) == (0, ["FUSED_ATTENTION", "LATENT_KV"])


@pytest.mark.parametrize("takes_past", [True, False])
def test_an_operator_inside_a_branch_is_its_layers(takes_past: bool) -> None:
    """In a graph that was not made flat. A branch for the first call takes no past and only gives the presents."""
    decoder = fused_decoder(Fused("mha", attributes=ONE_WAY))
    graph = decoder.model.graph
    inner = NodeProto()
    node = only(graph, "MultiHeadAttention")
    inner.CopyFrom(node)
    given = list(node.output)
    if not takes_past:
        del inner.input[6:]
    inner.output[:] = [f"inner.{name}" for name in given]
    branch = helper.make_graph(
        [inner], "branch", [], [helper.make_empty_tensor_value_info(name) for name in inner.output]
    )
    guard = helper.make_node("If", ["chosen"], given)
    guard.attribute.extend(
        AttributeProto(name=name, type=AttributeProto.GRAPH, g=branch) for name in ("then_branch", "else_branch")
    )
    graph.input.append(helper.make_tensor_value_info("chosen", TensorProto.BOOL, []))
    node.CopyFrom(guard)
    assert [(report.layer, report.kind) for report in admit(decoder).sites] == [(0, "mha")] * 2


def test_an_attention_by_name_alone_is_found_and_refused() -> None:
    decoder = fused_decoder(Fused("mha", attributes=ONE_WAY))
    node = only(decoder.model.graph, "MultiHeadAttention")
    node.op_type, node.domain = "RingAttention", "vendor"
    reports = admit(decoder).sites
    assert ("unknown_attention", "FUSED_ATTENTION") in [(r.kind, r.diagnostics[0].code) for r in reports]


@pytest.mark.parametrize("operator", ["LinearAttentionGate", "SparseAttentionIndexer", "GatedRelativePositionBias"])
def test_what_only_prepares_an_attention_is_none(operator: str) -> None:
    decoder = fused_decoder(Fused())
    graph = decoder.model.graph
    place = len(graph.node) - 1
    graph.node.insert(place, helper.make_node(operator, ["embedding"], ["prepared"], domain="com.microsoft"))
    assert names(decoder) == [("attention.0", "gqa", 0)]
