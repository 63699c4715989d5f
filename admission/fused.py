"""Fused attention operators: one node that holds a whole attention. Found by name, and refused."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from qbpass.admission.checks import fused_attention
from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.found import UNTIED
from qbpass.admission.report import SiteReport
from qbpass.models.graph_order import node_reads, subgraphs

# (domain, operator) -> the kind a report gives it
FUSED_KINDS = {
    ("", "Attention"): "onnx_attention",
    ("", "LinearAttention"): "linear_attention",
    ("com.microsoft", "Attention"): "ms_attention",
    ("com.microsoft", "GroupQueryAttention"): "gqa",
    ("com.microsoft", "MultiHeadAttention"): "mha",
    ("com.microsoft", "PackedAttention"): "packed_attention",
    ("com.microsoft", "PackedMultiHeadAttention"): "packed_mha",
    ("com.microsoft", "PagedAttention"): "paged_attention",
    ("com.microsoft", "SparseAttention"): "sparse_attention",
    ("com.microsoft", "LinearAttention"): "linear_attention",
    ("com.microsoft", "LongformerAttention"): "longformer_attention",
    ("com.microsoft", "DecoderAttention"): "decoder_attention",
    ("com.microsoft", "DecoderMaskedSelfAttention"): "masked_self_attention",
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): "masked_mha",
    ("com.microsoft", "QAttention"): "quantized_attention",
    ("com.microsoft", "QOrderedAttention"): "quantized_attention",
    ("com.microsoft", "WhisperAttention"): "whisper_attention",
}


def fused_attentions(flow: Flow) -> Iterator[SiteReport]:
    """Fused attention nodes of the graph and of its control-flow bodies, each refused with FUSED_ATTENTION."""
    layers = {
        tensor: pair.layer
        for pair in flow.interface.kv
        for tensor in (pair.past_key, pair.past_value, pair.present_key, pair.present_value)
    }
    for node in flow.nodes:
        for fused in _with_bodies(node):
            kind = FUSED_KINDS.get((_domain(fused), fused.op_type))
            if kind is not None:
                touched = (*node_reads(fused), *fused.output)
                layer = next((layers[tensor] for tensor in touched if tensor in layers), UNTIED)
                name = f"attention.{layer if layer != UNTIED else node_name(fused)}"
                yield SiteReport(name, kind, layer, None, (fused_attention.refuse(fused, name),))


def _domain(node: onnx.NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def _with_bodies(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    yield node
    for body in subgraphs(node):
        for inner in body.node:
            yield from _with_bodies(inner)
