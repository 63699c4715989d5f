"""Finds fused attention operators by name and says of each what is known of it, and why it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx

from qbpass.admission.checks import fused_attention, linear_attention
from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.fused import feature_checks, mask_checks, tie_checks
from qbpass.admission.fused.chainable import chain_site
from qbpass.admission.fused.fused_node import FusedNode
from qbpass.admission.fused.fused_ties import FusedTies
from qbpass.admission.fused.linear_sites import convolutions_before, is_recurrence, with_convolutions
from qbpass.admission.fused.operators import LINEAR, fused_operator
from qbpass.admission.fused.subject import FusedSubject
from qbpass.admission.report import Diagnostic, SiteReport
from qbpass.models.graph_order import subgraphs

FUSED_CHECKS: tuple[Callable[[FusedSubject], Diagnostic | None], ...] = (
    tie_checks.check_cross,
    tie_checks.check_latent,
    tie_checks.check_pair,
    feature_checks.check_shape,
    feature_checks.check_streams,
    feature_checks.check_rows,
    feature_checks.check_ratio,
    feature_checks.check_value_dim,
    feature_checks.check_types,
    feature_checks.check_quantized,
    mask_checks.check_first_key,
    mask_checks.check_bias,
    mask_checks.check_causal,
    mask_checks.check_window,
    feature_checks.check_sinks,
    feature_checks.check_softcap,
)


def fused_attentions(flow: Flow) -> Iterator[SiteReport]:
    """Fused attention nodes of the graph and of its control-flow bodies, in topological order.

    None can be opened, and each says why; those that can be evaluated query by query have a chain.
    """
    for subject in _subjects(flow):
        said = _refused(subject)
        chain = chain_site(subject, frozenset(diagnostic.code for diagnostic in said))
        yield SiteReport(subject.name, subject.kind, subject.layer, None, said, subject.facts(), chain)


def _subjects(flow: Flow) -> Iterator[FusedSubject]:
    ties = FusedTies(flow)
    in_front = {node_name(node): convolutions_before(node, flow) for node in flow.nodes if is_recurrence(node)}
    joined = {node_name(convolution) for found in in_front.values() for convolution in found}
    for node, renamed in _with_bodies(flow.nodes, {}):
        operator = fused_operator(node)
        if operator is None or node_name(node) in joined:
            continue
        fused = FusedNode(node, flow)
        reading = with_convolutions(operator.read(fused), in_front.get(node_name(node), []), flow)
        yield FusedSubject(fused, operator.kind, reading, ties.find(reading.tensors, renamed))


def _refused(subject: FusedSubject) -> tuple[Diagnostic, ...]:
    if subject.kind == LINEAR:
        states = [name for part, name in subject.tensors.items() if part.endswith("_state")]
        return (linear_attention.refuse(subject.name, subject.node.operator, states, node=node_name(subject.proto)),)
    found = (check(subject) for check in FUSED_CHECKS)
    return (
        fused_attention.refuse(subject.proto, subject.name),
        *(diagnostic for diagnostic in found if diagnostic is not None),
    )


def _with_bodies(
    nodes: Iterable[onnx.NodeProto], renamed: Mapping[str, str]
) -> Iterator[tuple[onnx.NodeProto, Mapping[str, str]]]:
    """Every node, and the names that an If gives to what its branch hands out."""
    for node in nodes:
        yield node, renamed
        for body in subgraphs(node):
            given = zip((value.name for value in body.output), node.output, strict=False)
            outer = {inner: renamed.get(name, name) for inner, name in given} if node.op_type == "If" else {}
            yield from _with_bodies(body.node, outer)
