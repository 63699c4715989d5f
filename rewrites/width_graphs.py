"""A straight-line graph for each number of rows that a verification call may have.

A chain of N links costs N operators in every call: a link without a row is run, too. A graph of as many links as the
call has rows has none of those, and no guard. It is the active layout's straight-line graph, made for that width and
called with that width alone; every call that is not the layout's stays with the guarded graph.
"""

from __future__ import annotations

from dataclasses import replace

import onnx

from qbpass.models.decoder import Decoder
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.chains.audit import audit_chains
from qbpass.rewrites.plan import RewritePlan
from qbpass.rewrites.planner import refuse_problems
from qbpass.rewrites.refused import RewriteRefused


def width_file(rows: int) -> str:
    """What a bundle calls the graph of calls of so many rows."""
    return f"decoder.rows{rows}.onnx"


def widths_of(max_queries: int) -> range:
    """Rows that have a graph of their own. A row alone has the reference's (runtime/row_calls.py)."""
    return range(2, max_queries + 1)


def width_graphs(frozen: Decoder, plan: RewritePlan) -> dict[int, onnx.ModelProto]:
    """Rows -> graph. Raises RewriteRefused where a layer's cache is not a chain's, whose memory all graphs share, and
    where an audit finds that a link reads what it must not.
    """
    if {chain.site.layer for chain in plan.chains} != {pair.layer for pair in frozen.contract.kv}:
        raise RewriteRefused(
            "--emit widths is for decoders whose every attention is a fused operator over one shared cache: "
            "use --emit guarded",
            of_layout=True,
        )
    graphs = {}
    for rows in widths_of(plan.max_queries):
        narrow = replace(plan, max_queries=rows)
        graphs[rows] = rewrite_graph(frozen, narrow, "active")
        problems = audit_chains(frozen, narrow, {"active": graphs[rows]})
        refuse_problems([problem for site in problems.values() for problem in site])
    return graphs
