"""Finds every attention of a decoder by dataflow: softmaxes between two products of activations, and fused operators.

1. A Softmax whose input comes from a product of two activations and whose result feeds another one is an attention.
2. It is a *site* if the QK product's second operand comes from a present key and the AV product's second operand from
   a present value of the contract.
3. Fused attention operators are found by name.
4. Whatever looks like attention and can't be read as a site is reported and refused, never skipped. Softmaxes that fail
   rule 1 (a router, a pooling head, a classifier) are no attention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice

import onnx

from qbpass.admission.cache_ties import CacheTies
from qbpass.admission.checks import FINDING_CHECKS, kv_without_site
from qbpass.admission.dataflow import Flow
from qbpass.admission.found import UNTIED, Found
from qbpass.admission.fused import fused_attentions
from qbpass.admission.read_site import read_site
from qbpass.admission.report import SiteReport
from qbpass.admission.walks import (
    ProductUse,
    find_probability_product,
    find_score_products,
    softmax_input,
)
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ModelFileError

MAX_ATTENTIONS = 256  # a model has one a layer, or two


def discover(decoder: Decoder) -> list[SiteReport]:
    """Every attention in layer order (those of no layer last): sites, unchecked, and what is no site, with its code."""
    return discover_in(Flow.of(decoder))


def discover_in(flow: Flow) -> list[SiteReport]:
    """`discover` on a dataflow that is already built.

    Raises ModelFileError for a graph of more attentions than are read: what is asked about each of them, and about each
    with the others, is bounded by their number.
    """
    reports = list(islice(chain(map(_read, _found(flow)), fused_attentions(flow)), MAX_ATTENTIONS + 1))
    if len(reports) > MAX_ATTENTIONS:
        raise ModelFileError(
            f"the graph has more than {MAX_ATTENTIONS:,} attentions, more than qbpass reads: export a smaller graph"
        )
    claimed = {report.layer for report in reports if not report.name.startswith("cross_")}
    reports.extend(kv_without_site.report(pair) for pair in flow.interface.kv if pair.layer not in claimed)
    return _named_apart(sorted(reports, key=lambda report: (report.layer == UNTIED, report.layer)))


def _found(flow: Flow) -> Iterator[Found]:
    ties = CacheTies(flow)
    for node in flow.nodes:
        scores = softmax_input(node, flow)
        products = find_score_products(scores, flow) if scores else []
        use = find_probability_product(node.output[0], flow) if products else None
        if use is not None:
            yield _tied(node, products, use, ties, flow)


def _tied(
    softmax: onnx.NodeProto, products: list[onnx.NodeProto], av: ProductUse, ties: CacheTies, flow: Flow
) -> Found:
    """Of several products behind one softmax, the one that reads a present key is QK; the others are position terms."""
    keys = [(product, tie) for product in products if (tie := ties.find(product.input[1])) and tie.role != "value"]
    qk, key = keys[0] if keys else (products[0], None)
    operands = (qk.input[1], av.node.input[1])
    projected = [tie for operand in operands if (tie := ties.find_projected(operand))]
    if projected:
        return Found(softmax, qk, av, projected[0], projected[-1], flow)
    value = ties.find(operands[1])
    other = ties.find_other_stream(operands[0]) if key is None and value is None else None
    if other is not None and ties.find_other_stream(qk.input[0]) == other:
        other = None  # an encoder's own attention: queries and keys are one stream
    return Found(softmax, qk, av, key, value, flow, other)


def _read(found: Found) -> SiteReport:
    for check in FINDING_CHECKS:
        diagnostic = check(found)
        if diagnostic is not None:
            return SiteReport(found.name, "decomposed", found.layer, None, (diagnostic,), found.facts())
    return read_site(found)


def _named_apart(reports: list[SiteReport]) -> list[SiteReport]:
    """Reports of one name (two attentions over one KV pair) get a number behind it from the second on."""
    seen: Counter[str] = Counter()
    named = []
    for report in reports:
        seen[report.name] += 1
        count = seen[report.name]
        named.append(report if count == 1 else _renamed(report, f"{report.name}.{count}"))
    return named


def _renamed(report: SiteReport, name: str) -> SiteReport:
    site = None if report.site is None else replace(report.site, name=name)
    chain = None if report.chain is None else replace(report.chain, name=name)
    said = tuple(replace(d, site=name) for d in report.diagnostics)
    return replace(report, name=name, site=site, chain=chain, diagnostics=said)
