"""The nodes that a guarded graph runs in one phase: each guard replaced by the branch that its condition chooses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from qbpass.admission.strides.cut_graph import GraphCutter
from qbpass.admission.strides.elements import UntracedError
from qbpass.models.dataflow import attribute
from qbpass.rewrites.guard import PHASE_INPUT
from qbpass.rewrites.phases import Phase


@dataclass(frozen=True, eq=False)
class PhaseNodes:
    """nodes: in topological order; constants: those of the branches; active: whether the guards chose the layout."""

    nodes: list[onnx.NodeProto]
    constants: list[onnx.TensorProto]
    active: bool


def guarded_nodes(model: onnx.ModelProto, phase: Phase) -> PhaseNodes:
    """Raises UntracedError where a condition depends on more than the phase, or guards choose differently."""
    guards = [node for node in model.graph.node if node.op_type == "If" and node.name.startswith("qbpass/")]
    chosen = {condition: _chosen(model, condition, phase) for condition in {node.input[0] for node in guards}}
    if len(set(chosen.values())) != 1:
        raise UntracedError("has guards that choose different layouts in one phase")
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    for node in model.graph.node:
        if node.op_type != "If" or not node.name.startswith("qbpass/"):
            nodes.append(node)
            continue
        branch = attribute(node, "then_branch" if chosen[node.input[0]] else "else_branch")
        nodes.extend(branch.node)
        constants.extend(branch.initializer)
        nodes.append(helper.make_node("Identity", [branch.output[0].name], list(node.output), f"{node.name}/result"))
    return PhaseNodes(nodes, constants, next(iter(chosen.values())))


def _chosen(model: onnx.ModelProto, condition: str, phase: Phase) -> bool:
    """The condition's value in the phase, from the graph's own table."""
    part = GraphCutter(model).cut([condition], {PHASE_INPUT}, lambda tensor: [])
    (value,) = ReferenceEvaluator(part).run(None, {PHASE_INPUT: np.array(int(phase), np.int64)})
    return bool(value)
