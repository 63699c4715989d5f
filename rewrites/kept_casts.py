"""Casts that round are kept from ONNX Runtime's own removal of casts.

Where a provider computes a float16 node in float32, ONNX Runtime puts casts around it, and whenever it opens a session
it removes a narrowing cast that a widening one follows directly, with optimization off, too; it does so to casts that
it inserted itself, which it knows by their names. In the frozen graph none is left to be removed. A rewrite may put a
cast behind such a one, and the rounding that the reference does between them must stay.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

#: What ONNX Runtime's insert_cast_transformer.cc begins the names of its own casts with.
INSERTED = "InsertedPrecisionFreeCast_"
KEPT = "kept/"


def keep_casts(graph: gs.Graph) -> None:
    """Give those casts names of their own, in place. Tensors keep theirs."""
    for node in graph.nodes:
        if node.op == "Cast" and node.name.startswith(INSERTED):
            node.name = f"{KEPT}{node.name}"
