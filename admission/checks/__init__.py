"""Why an attention is refused: one code a file. Codes are append-only; what a code means never changes.

`FINDING_CHECKS` run on what the walks found, before it is a site; `SITE_CHECKS` on a site; `GRAPH_CHECKS` on the whole
graph. The other modules hold codes that discovery or `admit` gives out where there is nothing to check.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from qbpass.admission.checks import (
    bias_not_mask,
    cache_operands,
    concat_form,
    cross_attention,
    dtype_query_key,
    dynamic_quantization,
    fused_attention,
    fused_feature,
    gqa_ratio,
    head_dim_mismatch,
    interior_read_elsewhere,
    key_extent,
    kv_without_site,
    latent_kv,
    linear_attention,
    mask_form,
    no_attention_found,
    no_kv_pair,
    no_past,
    not_causal,
    past_shared,
    present_read_elsewhere,
    product_form,
    product_operator,
    quantized_kv,
    query_axis,
    score_op,
    sinks,
    sliding_window,
    softcap,
    softmax_axis,
    spelled_out_softmax,
    streams,
    stride_legality,
    unknown_shape,
    value_dim,
)
from qbpass.admission.dataflow import Flow
from qbpass.admission.found import Found
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

FINDING_CHECKS: tuple[Callable[[Found], Diagnostic | None], ...] = (
    latent_kv.check,
    cross_attention.check,
    no_past.check,
    no_kv_pair.check,
    spelled_out_softmax.check,
    product_operator.check,
    cache_operands.check,
)

SITE_CHECKS: tuple[Callable[[Subject], Diagnostic | None], ...] = (
    product_form.check,
    streams.check,
    query_axis.check,
    gqa_ratio.check,
    head_dim_mismatch.check,
    value_dim.check,
    dtype_query_key.check,
    quantized_kv.check,
    concat_form.check,
    past_shared.check,
    present_read_elsewhere.check,
    interior_read_elsewhere.check,
    stride_legality.check,
    key_extent.check,
    mask_form.check,
    bias_not_mask.check,
    not_causal.check,
    sliding_window.check,
    sinks.check,
    softcap.check,
    score_op.check,
    softmax_axis.check,
)

GRAPH_CHECKS: tuple[Callable[[Flow, str], Diagnostic | None], ...] = (dynamic_quantization.check,)

ALL: tuple[ModuleType, ...] = (
    *(dynamic_quantization, no_attention_found, kv_without_site, fused_attention, fused_feature, linear_attention),
    *(
        unknown_shape,
        latent_kv,
        cross_attention,
        no_past,
        no_kv_pair,
        spelled_out_softmax,
        product_operator,
        cache_operands,
    ),
    *(product_form, streams, query_axis, gqa_ratio, head_dim_mismatch, value_dim, dtype_query_key, quantized_kv),
    *(concat_form, past_shared, present_read_elsewhere, interior_read_elsewhere, stride_legality, key_extent),
    *(mask_form, bias_not_mask, not_causal, sliding_window, sinks, softcap, score_op, softmax_axis),
)
