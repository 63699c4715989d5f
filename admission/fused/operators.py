"""The fused operators there are: the kind a report gives each, and its reader.

Source: onnx/defs/nn/defs.cc, and the schemas that onnxruntime 1.24 to 1.32 register for com.microsoft. An operator that
no list holds and whose name says Attention counts as one: it is better refused by name than overlooked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from qbpass.admission.fused import linear, ms_attention, others, paged
from qbpass.admission.fused.fused_node import FusedNode
from qbpass.admission.fused.gqa import read_gqa
from qbpass.admission.fused.mha import read_mha
from qbpass.admission.fused.onnx_attention import read_onnx_attention
from qbpass.admission.fused.reading import Reading

LINEAR = "linear_attention"


@dataclass(frozen=True)
class FusedOperator:
    kind: str
    read: Callable[[FusedNode], Reading]


_MICROSOFT = "com.microsoft"
_OPERATORS = {
    ("", "Attention"): FusedOperator("onnx_attention", read_onnx_attention),
    ("", "CausalConvWithState"): FusedOperator(LINEAR, linear.read_causal_convolution),
    ("", "LinearAttention"): FusedOperator(LINEAR, linear.read_linear_attention),
    (_MICROSOFT, "Attention"): FusedOperator("ms_attention", ms_attention.read_ms_attention),
    (_MICROSOFT, "CausalConvWithState"): FusedOperator(LINEAR, linear.read_causal_convolution),
    (_MICROSOFT, "DecoderAttention"): FusedOperator("decoder_attention", others.read_decoder_attention),
    (_MICROSOFT, "DecoderMaskedMultiHeadAttention"): FusedOperator("masked_mha", others.read_masked_mha),
    (_MICROSOFT, "DecoderMaskedSelfAttention"): FusedOperator(
        "masked_self_attention", ms_attention.read_masked_self_attention
    ),
    (_MICROSOFT, "DynamicSparseAttention"): FusedOperator(
        "dynamic_sparse_attention", paged.read_dynamic_sparse_attention
    ),
    (_MICROSOFT, "GatedDeltaNet"): FusedOperator(LINEAR, linear.read_gated_delta_net),
    (_MICROSOFT, "GroupQueryAttention"): FusedOperator("gqa", read_gqa),
    (_MICROSOFT, "LinearAttention"): FusedOperator(LINEAR, linear.read_linear_attention),
    (_MICROSOFT, "LongformerAttention"): FusedOperator("longformer_attention", others.read_longformer_attention),
    (_MICROSOFT, "Mamba2Verify"): FusedOperator(LINEAR, linear.read_mamba),
    (_MICROSOFT, "MultiHeadAttention"): FusedOperator("mha", read_mha),
    (_MICROSOFT, "PackedAttention"): FusedOperator("packed_attention", others.read_packed_attention),
    (_MICROSOFT, "PackedMultiHeadAttention"): FusedOperator("packed_mha", others.read_packed_mha),
    (_MICROSOFT, "PagedAttention"): FusedOperator("paged_attention", paged.read_paged_attention),
    (_MICROSOFT, "QAttention"): FusedOperator("quantized_attention", ms_attention.read_quantized_attention),
    (_MICROSOFT, "QOrderedAttention"): FusedOperator("quantized_attention", ms_attention.read_ordered_attention),
    (_MICROSOFT, "QOrderedLongformerAttention"): FusedOperator(
        "longformer_attention", others.read_longformer_attention
    ),
    (_MICROSOFT, "SparseAttention"): FusedOperator("sparse_attention", paged.read_sparse_attention),
    (_MICROSOFT, "SparsePagedAttention"): FusedOperator("sparse_paged_attention", paged.read_sparse_paged_attention),
    (_MICROSOFT, "VarlenCausalConvWithState"): FusedOperator(LINEAR, linear.read_packed_convolution),
    (_MICROSOFT, "WhisperAttention"): FusedOperator("whisper_attention", others.read_unknown),
}
_UNKNOWN = FusedOperator("unknown_attention", others.read_unknown)
# They prepare what an attention reads; none holds a softmax over keys.
_NO_ATTENTION = frozenset({"LinearAttentionGate", "PackedSparseAttentionIndexer", "SparseAttentionIndexer"})


def fused_operator(node: onnx.NodeProto) -> FusedOperator | None:
    """None where the node holds no attention."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    known = _OPERATORS.get((domain, node.op_type))
    if known is not None:
        return known
    named = "Attention" in node.op_type and not node.op_type.startswith(tuple(_NO_ATTENTION))
    return _UNKNOWN if named else None
