"""The guard around a site: one If that holds the native and the rewritten layout, weights and cache shared by both.

The condition comes from the graph's own phase input through a table baked at rewriting time, so no caller can run a
phase in a layout the plan did not choose for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.phases import guard_table

#: Graph input, scalar int64: the phase bit of this call (rewrites/phases.py).
PHASE_INPUT = "qbpass.phase"

Emit = Callable[[NodeBuilder], Any]


def declare_phase() -> gs.Variable:
    return gs.Variable(PHASE_INPUT, dtype=np.int64, shape=[])


def emit_condition(builder: NodeBuilder, phase: Any, mask: int) -> Any:
    """Scalar bool: is the layout active in this call's phase. A phase outside the table is an error in ONNX Runtime."""
    return builder.node("Gather", [builder.bools(guard_table(mask)), phase], "active", axis=0, dtype="bool")


#: What a phase is raised by in a graph that holds two layouts, where the second is asked for.
SECOND_LAYOUT = 16


def emit_which(builder: NodeBuilder, phase: Any, masks: tuple[int, int]) -> tuple[Any, Any]:
    """Scalar bools of a graph with two layouts: is either active, and is it the second (phase + SECOND_LAYOUT)."""
    table = [*(int(active) for active in guard_table(masks[0])), *(2 * active for active in guard_table(masks[1]))]
    which = builder.node("Gather", [builder.ints(*table), phase], "layout", axis=0, dtype="int64")
    either = builder.node("Greater", [which, builder.scalar(0)], "active", dtype="bool")
    return either, builder.node("Equal", [which, builder.scalar(2)], "second", dtype="bool")


def emit_guarded(outer: NodeBuilder, condition: Any, active: Emit, native: Emit, graph: gs.Graph) -> gs.Node:
    """If(condition) { active } else { native }, its one output still to be given."""
    branches = {}
    for branch, layout, emit in (("then_branch", "active", active), ("else_branch", "native", native)):
        builder = NodeBuilder(f"{outer.scope}/{layout}", constants=outer.constants)
        result = emit(builder)
        result.shape = None
        branches[branch] = gs.Graph(
            nodes=builder.nodes,
            inputs=[],
            outputs=[result],
            name=builder.scope,
            opset=graph.opset,
            import_domains=graph.import_domains,
        )
    return gs.Node("If", f"{outer.scope}/guard", attrs=branches, inputs=[condition])
