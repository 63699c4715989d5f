"""A fused operator is refused for being one, and besides for each thing that it turns on."""

from __future__ import annotations

import numpy as np
import pytest
from fused_graphs import Fused, codes, fused_decoder, only_report
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from qbpass.admission import admit

CAUSAL = {"is_causal": 1}
ONE_WAY = {"unidirectional": 1}

PLAIN = {
    "gqa": Fused(),
    "gqa, packed, rotary": Fused(
        packed="qkv", extras={"cos_cache": (9, 4), "sin_cache": (9, 4)}, attributes={"do_rotary": 1}
    ),
    "gqa, no window": Fused(attributes={"local_window_size": -1, "softcap": 0.0, "smooth_softmax": 0}),
    "gqa, both ways under a causal mask": Fused(attributes={"causal": 0}, added="causal"),
    "gqa, normalised": Fused(extras={"q_norm_weight": (8,), "k_norm_weight": (8,)}),
    "gqa, not quantized": Fused(attributes={"k_quant_type": "NONE", "v_quant_type": "NONE"}),
    "mha, one way": Fused("mha", attributes=ONE_WAY),
    "mha under a causal mask": Fused("mha", added="causal"),
    "onnx, causal": Fused("onnx", attributes=CAUSAL),
    "onnx, rank 3": Fused("onnx", rank=3, attributes=CAUSAL),
    "onnx, no row to the right": Fused("onnx", attributes={"right_window_size": 0}),
    "onnx under a causal mask": Fused("onnx", added="causal"),
    "onnx under booleans": Fused("onnx", added="causal", boolean=True, joined="outside"),
    "ms, one way": Fused("ms", attributes=ONE_WAY),
}

TURNED = [
    ("SLIDING_WINDOW", Fused(attributes={"local_window_size": 8})),
    ("SLIDING_WINDOW", Fused(attributes={"local_window_size": 8, "sliding_window_cache": 1})),
    ("SLIDING_WINDOW", Fused("mha", added="window")),
    ("SLIDING_WINDOW", Fused("onnx", added="window", boolean=True)),
    ("SLIDING_WINDOW", Fused("onnx", attributes={"left_window_size": 0, "right_window_size": 0})),
    ("SOFTCAP", Fused(attributes={"softcap": 50.0})),
    ("SOFTCAP", Fused("onnx", attributes={"softcap": 50.0, **CAUSAL})),
    ("SINKS", Fused(extras={"head_sink": (4,)})),
    ("SINKS", Fused(attributes={"smooth_softmax": 1})),
    ("BIAS_NOT_MASK", Fused(added="alibi")),
    ("BIAS_NOT_MASK", Fused("mha", added="float_input")),
    ("BIAS_NOT_MASK", Fused("onnx", added="small_numbers")),
    ("BIAS_NOT_MASK", Fused(extras={"attention_bias": (1, 4, 8, 8)})),
    ("NOT_CAUSAL", Fused(attributes={"causal": 0})),
    ("NOT_CAUSAL", Fused("mha")),
    ("NOT_CAUSAL", Fused("mha", added="indicator")),
    ("NOT_CAUSAL", Fused("onnx")),
    ("NOT_CAUSAL", Fused("onnx", added="indicator", boolean=True)),
    ("NOT_CAUSAL", Fused("onnx", attributes={"right_window_size": -1})),
    ("NOT_CAUSAL", Fused("ms")),
    ("KEY_EXTENT", Fused("onnx", joined="outside", attributes=CAUSAL)),
    ("QUANTIZED_KV", Fused(attributes={"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_TENSOR"})),
    ("DTYPE_QUERY_KEY", Fused(elem_type=TensorProto.FLOAT16)),
    ("DTYPE_QUERY_KEY", Fused("mha", elem_type=TensorProto.FLOAT16, attributes=ONE_WAY)),
    ("STREAMS", Fused(batch=2)),
    ("STREAMS", Fused("onnx", batch=2, attributes=CAUSAL)),
    ("STREAMS", Fused("ms", batch=2, attributes=ONE_WAY)),
    ("VALUE_DIM", Fused("mha", value_dim=4, attributes=ONE_WAY)),
    ("VALUE_DIM", Fused("onnx", value_dim=12, attributes=CAUSAL)),
    ("GQA_RATIO", Fused(heads=3, kv_heads=2)),
    ("GQA_RATIO", Fused("onnx", heads=3, kv_heads=2, attributes=CAUSAL)),
    ("UNKNOWN_SHAPE", Fused(attributes={"kv_num_heads": 0})),
]


@pytest.mark.parametrize("name", [name for name in PLAIN if not name.startswith("ms") and "normalised" not in name])
def test_a_plain_operator_is_admitted_by_lowering(name: str) -> None:
    report = only_report(PLAIN[name])
    assert (codes(report), report.layouts) == ([], ("qb", "pq"))
    assert report.lowered is not None


@pytest.mark.parametrize(
    ("layer", "feature"),
    [
        (Fused("mha", attributes=ONE_WAY, extras={"bias": (96,)}), "projection_bias"),
        (Fused("mha", attributes={**ONE_WAY, "mask_filter_value": -5.0}), "mask_filter_value"),
        (Fused("onnx", attributes={**CAUSAL, "softmax_precision": TensorProto.FLOAT16}), "softmax_precision"),
        (Fused("onnx", attributes=CAUSAL, extras={"nonpad_kv_seqlen": (1,)}), "nonpad_kv_seqlen"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_feature_that_no_lowering_spells_out_is_named(layer: Fused, feature: str) -> None:
    report = only_report(layer, opset=24 if feature == "nonpad_kv_seqlen" else None)
    assert codes(report) == ["FUSED_ATTENTION", "FUSED_FEATURE"]
    assert feature in report.diagnostics[1].evidence
    assert report.layouts == ()


def test_what_no_lowering_spells_out_is_named() -> None:
    report = only_report(PLAIN["gqa, normalised"])
    assert (codes(report), report.layouts) == (["FUSED_ATTENTION", "FUSED_FEATURE"], ("pq",))
    assert report.diagnostics[1].evidence["operator"] == "com.microsoft::GroupQueryAttention"


def test_a_plain_operator_that_nothing_spells_out_is_refused_for_being_fused_alone() -> None:
    report = only_report(PLAIN["ms, one way"])
    assert (codes(report), report.lowered, report.layouts) == (["FUSED_ATTENTION"], None, ())


@pytest.mark.parametrize(("code", "layer"), TURNED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_turned_knob_adds_its_code_and_no_other(code: str, layer: Fused) -> None:
    assert codes(only_report(layer)) == ["FUSED_ATTENTION", code]


def test_each_knob_adds_its_own_code() -> None:
    attributes = {"local_window_size": 4, "softcap": 30.0, "smooth_softmax": 1, "k_quant_type": "PER_TENSOR"}
    report = only_report(Fused(added="alibi", attributes=attributes, batch=2, elem_type=TensorProto.FLOAT16))
    assert set(codes(report)) == {
        *("FUSED_ATTENTION", "SLIDING_WINDOW", "SOFTCAP", "SINKS", "QUANTIZED_KV", "BIAS_NOT_MASK", "STREAMS"),
        "DTYPE_QUERY_KEY",
    }


@pytest.mark.parametrize("cache_type", [TensorProto.INT8, TensorProto.UINT8, TensorProto.FLOAT8E4M3FN])
def test_a_cache_of_few_bits_is_quantized_and_not_float32(cache_type: int) -> None:
    report = only_report(Fused(cache_type=cache_type))
    assert codes(report) == ["FUSED_ATTENTION", "DTYPE_QUERY_KEY", "QUANTIZED_KV"]
    quantized = report.diagnostics[-1].evidence
    assert quantized["past.0.key"] == quantized["present.0.value"] == TensorProto.DataType.Name(cache_type).lower()


def test_a_half_precision_cache_under_float32_queries_is_no_quantized_one() -> None:
    assert codes(only_report(Fused(cache_type=TensorProto.FLOAT16))) == ["FUSED_ATTENTION", "DTYPE_QUERY_KEY"]


def test_the_first_diagnostic_says_that_a_fused_kernel_inherits_nothing() -> None:
    first = only_report(Fused(attributes={"softcap": 50.0})).diagnostics[0]
    assert "one fused operator" in first.message
    assert first.evidence["operator"] == "com.microsoft::GroupQueryAttention"
    assert first.evidence["node"] == "l0.gqa"


def test_the_evidence_names_what_was_turned_on() -> None:
    attributes = {"local_window_size": 8, "softcap": 50.0}
    report = only_report(Fused(attributes=attributes, extras={"head_sink": (4,)}))
    evidence = {diagnostic.code: diagnostic.evidence for diagnostic in report.diagnostics}
    assert evidence["SLIDING_WINDOW"] == {"local_window_size": 8}
    assert evidence["SOFTCAP"] == {"softcap": 50.0}
    assert evidence["SINKS"]["head_sink"] is True
    assert str(evidence["SINKS"]["tensor"]).startswith("c")


def test_a_query_that_may_read_a_later_key_is_named_with_it() -> None:
    (_, diagnostic) = only_report(Fused("mha", added="indicator")).diagnostics
    assert (diagnostic.evidence["query"], diagnostic.evidence["past"]) == (0, 5)
    assert diagnostic.evidence["keys"] == [6]


def test_a_window_longer_than_a_short_call_is_found_in_a_long_one() -> None:
    decoder = fused_decoder(Fused("onnx", added="window", boolean=True))
    start = next(node for node in decoder.model.graph.node if node.output[0] == "window_start")
    (size,) = (tensor for tensor in decoder.model.graph.initializer if tensor.name == start.input[1])
    size.CopyFrom(numpy_helper.from_array(np.array(4096), size.name))
    (report,) = admit(decoder).sites
    assert codes(report) == ["FUSED_ATTENTION", "SLIDING_WINDOW"]


def test_a_mask_of_whole_numbers_is_read_as_one() -> None:
    """key_padding_mask of (1, queries, keys): causal by itself. A mask of lengths alone cuts padding off, no more."""
    decoder = fused_decoder(Fused("mha", added="causal", boolean=True))
    node = next(node for node in decoder.model.graph.node if node.op_type == "MultiHeadAttention")
    mask = node.input[5]
    node.input[5] = ""
    squeezed = helper.make_node("Squeeze", [mask, "axis_1"], ["rows_and_keys"])
    whole = helper.make_node("Cast", ["rows_and_keys"], ["whole_mask"], to=TensorProto.INT32)
    _in_front(decoder.model.graph, node, squeezed, whole)
    decoder.model.graph.initializer.append(helper.make_tensor("axis_1", TensorProto.INT64, [1], [1]))
    mha = next(node for node in decoder.model.graph.node if node.op_type == "MultiHeadAttention")
    mha.input[4] = "whole_mask"
    (report,) = admit(decoder).sites
    assert codes(report) == ["FUSED_ATTENTION", "FUSED_FEATURE"]
    lengths = helper.make_node("ReduceSum", ["attention_mask", "axis_1"], ["lengths"], keepdims=0)
    _in_front(decoder.model.graph, mha, lengths)
    next(node for node in decoder.model.graph.node if node.op_type == "MultiHeadAttention").input[4] = "lengths"
    (report,) = admit(decoder).sites
    assert codes(report) == ["FUSED_ATTENTION", "NOT_CAUSAL"]
    assert report.diagnostics[1].message.startswith("neither the operator nor a mask")


def test_minus_ten_thousand_hides_a_key() -> None:
    """The value that older exporters write; in every float type exp(-1e4) is 0."""
    decoder = fused_decoder(Fused("mha", added="causal"))
    for tensor in decoder.model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.ndim == 0 and value.dtype == np.float32 and value < -1e30:
            tensor.CopyFrom(numpy_helper.from_array(np.array(-1e4, np.float32), tensor.name))
    (report,) = admit(decoder).sites
    assert (codes(report), report.layouts) == ([], ("qb", "pq"))


def _in_front(graph: GraphProto, node: NodeProto, *added: NodeProto) -> None:
    place = list(graph.node).index(node)
    for offset, new in enumerate(added):
        graph.node.insert(place + offset, new)


@pytest.mark.parametrize(
    ("operator", "why"),
    [
        ("DecoderMaskedMultiHeadAttention", "takes calls of one token only"),
        ("PackedMultiHeadAttention", "takes the tokens of several streams packed behind each other"),
    ],
)
def test_rows_that_are_not_the_calls_tokens_are_refused(operator: str, why: str) -> None:
    decoder = fused_decoder(Fused("mha", attributes=ONE_WAY))
    node = next(node for node in decoder.model.graph.node if node.op_type == "MultiHeadAttention")
    node.op_type = operator
    report = next(report for report in admit(decoder).sites if report.kind != "unknown")
    assert {"FUSED_ATTENTION", "QUERY_AXIS"} <= set(codes(report))
    assert any(why in diagnostic.message for diagnostic in report.diagnostics)


def test_a_call_of_one_token_by_shape_is_refused() -> None:
    decoder = fused_decoder(Fused())
    ids = next(value for value in decoder.model.graph.input if value.name == "input_ids")
    ids.type.tensor_type.shape.dim[1].dim_value = 1
    (report,) = admit(decoder).sites
    assert codes(report) == ["FUSED_ATTENTION", "QUERY_AXIS"]


@pytest.mark.parametrize("operator", ["gqa", "mha", "onnx", "ms"])
def test_attributes_of_the_wrong_type_do_not_raise(operator: str) -> None:
    decoder = fused_decoder(Fused(operator))
    node = next(node for node in decoder.model.graph.node if "Attention" in node.op_type)
    names = {"num_heads", "kv_num_heads", "scale", "softcap", "local_window_size", "unidirectional", "is_causal"}
    del node.attribute[:]
    node.attribute.extend(helper.make_attribute(name, ["a", "b"]) for name in sorted(names))
    node.attribute.append(AttributeProto(name="qkv_hidden_sizes", type=AttributeProto.INTS, ints=[-1, 0, 7]))
    (report,) = admit(decoder).sites
    assert codes(report)[0] == "FUSED_ATTENTION"


def test_an_attribute_of_the_wrong_type_counts_as_left_out() -> None:
    assert codes(only_report(Fused(attributes={"causal": "no", "softcap": 50}))) == []


def test_numbers_that_are_none_count_as_left_out() -> None:
    facts = only_report(Fused(attributes={"scale": float("nan"), "softcap": float("inf")})).facts
    assert facts is not None
    assert facts.scale == pytest.approx(8**-0.5)
    assert "softcap" not in facts.features
    assert np.isfinite(facts.scale)
