"""The layout in which the fused operator itself runs, as exported."""

from __future__ import annotations

from typing import Any

from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.layouts.context import SiteContext
from qbpass.rewrites.lowering.fused_call import emit_fused_call, emit_whole_operands


def emit_fused_native(builder: NodeBuilder, context: SiteContext) -> Any:
    """The node that the frozen graph has, all rows of the call at once. Returns (1, H, q, dv)."""
    return emit_fused_call(builder, context, emit_whole_operands(builder, context))
