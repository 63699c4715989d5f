"""What it does: refuses an operator between the products and the softmax other than a scalar factor, an added mask, a
cast between float types and a guard against NaN.

Why it matters: the layouts run these operators on other shapes; only those known to act on each score alone may
move.

Example: `Where(mask, scores, -inf)`; dropout left in the graph; probabilities multiplied by head weights.
"""

from __future__ import annotations

import onnx

from qbpass.admission.dataflow import node_name
from qbpass.admission.factors import casts_floats, constant_factor
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "SCORE_OP"
_SINK_OPERATORS = frozenset({"Concat", "Slice", "Split", "Gather", "ReduceMax", "Sub"})


def check(subject: Subject) -> Diagnostic | None:
    sinks = any(node.op_type == "Concat" for node in subject.score_path)
    guard = _nan_guard(subject)
    for node in (*subject.score_path, *subject.prob_path):
        if casts_floats(node, subject.flow):
            continue
        of_sinks = sinks and node.op_type in _SINK_OPERATORS  # SINKS speaks for these, SOFTCAP for Tanh
        if not of_sinks and node not in guard and not (node in subject.score_path and _known_on_scores(node, subject)):
            message = f"{node.op_type} between the products is not known to act on each score alone"
            return subject.refuse(CODE, message, node=node_name(node), inputs=list(node.input))
    return None


def _known_on_scores(node: onnx.NodeProto, subject: Subject) -> bool:
    scores = {subject.site.nodes.qk, *subject.site.nodes.score_path}
    if sum(tensor in scores for tensor in node.input) != 1:
        return False  # scores combined with themselves: no chain, and no one factor
    if node.op_type in ("Mul", "Div"):
        return constant_factor(node, subject.flow) is not None
    return node.op_type in ("Add", "Tanh", "Identity")


def _nan_guard(subject: Subject) -> list[onnx.NodeProto]:
    """IsNaN and Where of `Where(IsNaN(p), constant, p)`, if with casts that is all the probability path holds."""
    path = [node for node in subject.prob_path if not casts_floats(node, subject.flow)]
    probabilities = {subject.site.nodes.softmax}
    for node in subject.prob_path:
        if casts_floats(node, subject.flow) and node.input[0] in probabilities:
            probabilities.add(str(node.output[0]))
    if [node.op_type for node in path] != ["IsNaN", "Where"] or path[0].input[0] not in probabilities:
        return []
    condition, filler, kept = path[1].input
    exact = condition == path[0].output[0] and kept in probabilities and subject.flow.scalar(filler) is not None
    return path if exact else []
