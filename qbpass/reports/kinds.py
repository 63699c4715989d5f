"""What the kinds of attention in a report are, in a few words."""

from __future__ import annotations

KINDS = {
    "decomposed": "separate nodes: a product, a softmax, a product",
    "cross_attention": "attention to another stream (an encoder's), whose keys are never appended to",
    "onnx_attention": "ONNX's Attention, one operator",
    "linear_attention": "LinearAttention: a state in place of cached rows",
    "gqa": "com.microsoft GroupQueryAttention, one operator",
    "mha": "com.microsoft MultiHeadAttention, one operator",
    "ms_attention": "com.microsoft Attention, one operator",
    "packed_attention": "com.microsoft PackedAttention, one operator",
    "packed_mha": "com.microsoft PackedMultiHeadAttention, one operator",
    "paged_attention": "com.microsoft PagedAttention, one operator over blocks of a cache",
    "sparse_attention": "com.microsoft SparseAttention, one operator",
    "longformer_attention": "com.microsoft LongformerAttention, one operator",
    "decoder_attention": "com.microsoft DecoderAttention, one operator",
    "masked_self_attention": "com.microsoft DecoderMaskedSelfAttention, one operator",
    "masked_mha": "com.microsoft DecoderMaskedMultiHeadAttention, one operator",
    "quantized_attention": "an attention operator on quantized values",
    "whisper_attention": "com.microsoft WhisperAttention, one operator",
    "unknown": "a KV pair that no attention was found for",
}
