"""What it does: refuses a mask that bounds keys from both sides.

Why it matters: under a sliding window the zero-weight rows lie in front of a query's keys, too, and the extent
rules that keep rows exact were measured with rows masked behind them only.

Example: `(key <= query) & (key > query - 4096)` in every other layer.
"""

from __future__ import annotations

import onnx

from qbpass.admission.dataflow import node_name
from qbpass.admission.mask_flow import COMPARISONS, bias_source, mask_nodes
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "SLIDING_WINDOW"


def check(subject: Subject) -> Diagnostic | None:
    for mask in subject.added_terms:
        if bias_source(mask, subject.flow) is not None:
            continue
        bounds = [node for node in mask_nodes(mask, subject.flow) if _bounds_keys_by_query(node, subject)]
        if len(bounds) > 1:
            compared = {node_name(node): [node.op_type, *node.input] for node in bounds}
            return subject.refuse(CODE, "the mask bounds keys from both sides (a sliding window)", comparisons=compared)
    return None


def _bounds_keys_by_query(node: onnx.NodeProto, subject: Subject) -> bool:
    """A comparison that varies along both queries and keys. (A padding mask varies along keys alone.)"""
    if node.op_type == "Trilu":
        return True
    if node.op_type not in COMPARISONS:
        return False
    shape = subject.shape(node.output[0])
    if shape is None:
        return all(tensor in subject.flow.activations for tensor in node.input)
    return len(shape) >= 2 and shape[-1] != 1 and shape[-2] != 1
