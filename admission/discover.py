"""Finds every attention of a decoder by dataflow: softmaxes between two products of activations, and fused operators.

1. A Softmax whose input comes from a product of two activations and whose result feeds another one is an attention.
2. It is a *site* if the QK product's second operand comes from a present key and the AV product's second operand from
   a present value of the contract.
3. Fused attention operators are found by name.
4. Whatever looks like attention and can't be read as a site is reported and refused, never skipped. Softmaxes that fail
   rule 1 (a router, a pooling head, a classifier) are no attention.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.fused import fused_attentions
from qbpass.admission.read_site import read_site
from qbpass.admission.report import Diagnostic, SiteReport
from qbpass.admission.walks import (
    PLAIN_PRODUCTS,
    CacheTie,
    CacheTies,
    ProductUse,
    find_probability_product,
    find_score_products,
)
from qbpass.models.contract import KVPair
from qbpass.models.decoder import Decoder

UNTIED = -1  # the layer of an attention that belongs to no KV pair


def discover(decoder: Decoder) -> list[SiteReport]:
    """Every attention in layer order (those of no layer last): sites, unchecked, and what is no site, with its code."""
    return discover_in(Flow.of(decoder))


def discover_in(flow: Flow) -> list[SiteReport]:
    """`discover` on a dataflow that is already built."""
    found = [*_softmax_attentions(flow), *fused_attentions(flow)]
    claimed = {report.layer for report in found}
    found.extend(_without_site(pair) for pair in flow.contract.kv if pair.layer not in claimed)
    return sorted(found, key=lambda report: (report.layer == UNTIED, report.layer))


def _softmax_attentions(flow: Flow) -> Iterator[SiteReport]:
    ties = CacheTies(flow)
    for node in flow.nodes:
        weights = _softmax_result(node, flow)
        if weights is None:
            continue
        products = find_score_products(node.input[0] if node.op_type == "Softmax" else _exponent(node, flow), flow)
        use = find_probability_product(weights, flow)
        if products and use is not None:
            yield _read(node, products, use, ties, flow)


def _softmax_result(node: onnx.NodeProto, flow: Flow) -> str | None:
    """The tensor of attention weights, if the node is a Softmax or the division that ends a softmax spelled out."""
    if node.op_type == "Softmax" or (node.op_type == "Div" and _exponent(node, flow)):
        return node.output[0]
    return None


def _exponent(node: onnx.NodeProto, flow: Flow) -> str:
    """The input of the Exp in `Exp(x) / ReduceSum(Exp(x))`, or "" where the division is something else."""
    top, bottom = (flow.producer(name) for name in node.input[:2])
    if top is None or bottom is None or top.op_type != "Exp" or bottom.op_type not in ("ReduceSum", "Add"):
        return ""
    reads = bottom if bottom.op_type == "ReduceSum" else next(filter(None, map(flow.producer, bottom.input)), bottom)
    return top.input[0] if reads.op_type == "ReduceSum" and reads.input[0] == top.output[0] else ""


def _read(
    softmax: onnx.NodeProto, products: list[onnx.NodeProto], use: ProductUse, ties: CacheTies, flow: Flow
) -> SiteReport:
    key_ties = [(product, tie) for product in products if (tie := ties.find(product.input[1])) and tie.role == "key"]
    qk, key = key_ties[0] if key_ties else (products[0], None)
    value = ties.find(use.node.input[1])
    refusal = _refusal(softmax, qk, use, key, value)
    if key is not None and value is not None and refusal is None:
        return read_site(softmax, qk, use.node, key, value, flow)
    layer = key.pair.layer if key else value.pair.layer if value else UNTIED
    name = f"attention.{layer}" if layer != UNTIED else f"attention.{node_name(softmax)}"
    code, message = refusal or ("", "")
    evidence = {
        "softmax": node_name(softmax),
        "qk": node_name(qk),
        "av": node_name(use.node),
        "operands": list(qk.input) + list(use.node.input),
    }
    return SiteReport(name, "decomposed", layer, None, (Diagnostic(code, name, message, evidence),))


def _refusal(
    softmax: onnx.NodeProto, qk: onnx.NodeProto, use: ProductUse, key: CacheTie | None, value: CacheTie | None
) -> tuple[str, str] | None:
    """Why an attention can't be read as a site, or None."""
    if key is None and value is None:
        return (
            "NO_KV_PAIR",
            "this attention reads no KV pair of the decoder (cross-attention, or an encoder); only self-attention over the KV cache is rewritten",
        )
    if softmax.op_type != "Softmax":
        return "SPELLED_OUT_SOFTMAX", "the softmax is written as Exp and ReduceSum; export with a Softmax node"
    odd = next((node.op_type for node in (qk, use.node) if node.op_type not in PLAIN_PRODUCTS), None)
    if odd is not None:
        return "UNREADABLE_SITE", f"a product of this attention is {odd}; only MatMul and FusedMatMul are read"
    if use.operand != 0:
        return (
            "UNREADABLE_SITE",
            "the probabilities are the second operand of their product; only probabilities x values is read",
        )
    if key is None or value is None or value.role != "value":
        return (
            "UNREADABLE_SITE",
            "keys or values of this attention do not come from the KV cache; only self-attention over the KV cache is rewritten",
        )
    if key.pair != value.pair:
        return (
            "UNREADABLE_SITE",
            f"keys come from layer {key.pair.layer}'s KV cache and values from layer {value.pair.layer}'s",
        )
    return None


def _without_site(pair: KVPair) -> SiteReport:
    name = f"attention.{pair.layer}"
    message = (
        f"no attention was found that reads the KV pair of layer {pair.layer}; this kind of layer can't be rewritten"
    )
    evidence = {"past": [pair.past_key, pair.past_value], "present": [pair.present_key, pair.present_value]}
    return SiteReport(name, "unknown", pair.layer, None, (Diagnostic("KV_WITHOUT_SITE", name, message, evidence),))
