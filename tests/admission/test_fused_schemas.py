"""Every operand has the part that its schema gives it: the tables are compared with ONNX's and ONNX Runtime's schemas.

A release may append operands to a schema; it never moves one. So the tables' beginnings must agree, in any release.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from graph_writer import GraphWriter
from onnx import defs, helper
from onnxruntime.capi import _pybind_state

from qbpass.admission.dataflow import Flow
from qbpass.admission.fused.fused_node import FusedNode
from qbpass.admission.fused.operators import fused_operator
from qbpass.models.decoder import Decoder
from qbpass.models.find_interface import find_interface

MICROSOFT = "com.microsoft"
# part -> the schemas' names for it, where they are others
NAMES = {
    "q": {"query", "Q"},
    "k": {"key", "K"},
    "v": {"value", "V"},
    "mask": {"attn_mask"},
    "output": {"Y"},
    "weights": {"weight"},
    "k_scale": {"key_scale"},
    "v_scale": {"value_scale"},
    "input": {"projection"},
    "past_key": {"key_cache"},
    "past_value": {"value_cache"},
    "present_key": {"new_key_cache"},
    "present_value": {"new_value_cache"},
    "past_state": {"initial_state", "ssm_state"},
    "present_state": {"final_state", "ssm_snapshots"},
    "past_conv_state": {"conv_state"},
    "present_conv_state": {"conv_snapshots"},
    "cu_seqlens": {"cumulative_sequence_length"},
    "a_negative": {"A_negative"},
    "d": {"D"},
}
MICROSOFT_OPERATORS = (
    *("Attention", "CausalConvWithState", "DecoderAttention", "DecoderMaskedMultiHeadAttention"),
    *("DecoderMaskedSelfAttention", "DynamicSparseAttention", "GatedDeltaNet", "GroupQueryAttention"),
    *("LinearAttention", "LongformerAttention", "Mamba2Verify", "MultiHeadAttention", "PackedAttention"),
    *("PackedMultiHeadAttention", "PagedAttention", "QAttention", "QOrderedAttention", "QOrderedLongformerAttention"),
    *("SparseAttention", "SparsePagedAttention", "VarlenCausalConvWithState"),
)
SCHEMAS = {
    (schema.domain, schema.name): schema
    for schema in _pybind_state.get_all_operator_schema()
    if schema.domain == MICROSOFT
}


def read(domain: str, operator: str, inputs: list[str], outputs: list[str], opset: int) -> dict[str, str]:
    """Part -> tensor, of a node whose tensors are named as its schema names them."""
    writer = GraphWriter()
    model = writer.model()
    model.opset_import[0].version = opset
    model.graph.node.append(helper.make_node(operator, inputs, outputs, domain=domain))
    flow = Flow.of(Decoder(Path("schema.onnx"), model, find_interface(model)))
    found = fused_operator(model.graph.node[0])
    assert found is not None
    return dict(found.read(FusedNode(model.graph.node[0], flow)).tensors)


def assert_named(parts: dict[str, str], inputs: list[str], outputs: list[str]) -> None:
    wrong = {part: name for part, name in parts.items() if part != name and name not in NAMES.get(part, set())}
    assert wrong == {}
    # Operands that a later release appended have no part; none between two that have one is left out.
    for names in (inputs, outputs):
        named = [name in parts.values() for name in names]
        assert named == sorted(named, reverse=True)
        assert named[0]


@pytest.mark.parametrize("operator", MICROSOFT_OPERATORS)
def test_com_microsofts_operands_have_their_schemas_parts(operator: str) -> None:
    schema = SCHEMAS.get((MICROSOFT, operator))
    if schema is None:
        pytest.skip(f"this ONNX Runtime registers no {operator}")
    inputs, outputs = ([entry.name for entry in entries] for entries in (schema.inputs, schema.outputs))
    assert_named(read(MICROSOFT, operator, inputs, outputs, 18), inputs, outputs)


@pytest.mark.parametrize(
    ("operator", "version"),
    [("Attention", 23), ("Attention", 24), ("Attention", 25), ("LinearAttention", 27), ("CausalConvWithState", 27)],
)
def test_onnxs_operands_have_their_schemas_parts(operator: str, version: int) -> None:
    if defs.onnx_opset_version() < version:
        pytest.skip(f"this onnx has no opset {version}")
    schema = defs.get_schema(operator, version, "")
    inputs, outputs = ([entry.name for entry in entries] for entries in (schema.inputs, schema.outputs))
    assert_named(read("", operator, inputs, outputs, version), inputs, outputs)


def test_every_fused_attention_of_this_onnxruntime_is_known_by_name() -> None:
    """A new release's operator is found all the same, as an unknown attention; here none is left unread."""
    unread = {
        name
        for _, name in SCHEMAS
        if (found := fused_operator(helper.make_node(name, [], [], domain=MICROSOFT))) is not None
        and found.kind == "unknown_attention"
    }
    assert unread == set()
