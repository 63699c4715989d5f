"""A call of the original fused operator over the written cache: whole in a native phase, or one row of a block.

Shapes: the operator's own (admission/original.py). The cache is (n, Hkv, d), this call's rows in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx
import onnx_graphsurgeon as gs

from qbpass.admission.lowering.writer import PREFIX
from qbpass.admission.original import FusedOriginal
from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.layouts.context import SiteContext

#: Operands that have the call's rows, beside K and V where they are new rows.
_ROWS = frozenset({"q", "packed_qkv"})
_MASKS = frozenset({"mask", "attention_bias"})


@dataclass(frozen=True)
class Row:
    """One row of a block. start, end: its bounds, 1-element int64; past: the keys before it; extent: those it reads."""

    start: Any
    end: Any
    past: Any
    extent: Any


def emit_fused_call(builder: NodeBuilder, context: SiteContext, whole: dict[str, Any], row: Row | None = None) -> Any:
    """(1, H, q, dv), or (1, H, 1, dv) of `row`. whole: what `emit_whole_operands` returned."""
    original = _original(context)
    inputs = [_operand(builder, context, original, str(name), whole, row) for name in original.node.input]
    results = [
        gs.Variable(f"{builder.scope}/fused/{name}") if name else gs.Variable.empty() for name in _results(original)
    ]
    attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in original.node.attribute}
    builder.nodes.append(
        gs.Node(
            original.node.op_type,
            f"{builder.scope}/fused",
            attrs=attributes,
            inputs=inputs,
            outputs=results,
            domain=original.node.domain or None,
        )
    )
    output = results[0]
    output.dtype = context.q_1HqD.dtype
    if not original.flat:
        return output
    site = context.site
    apart = builder.reshape(output, builder.ints(1, -1, site.heads, site.value_dim), "fused/apart")
    return builder.node("Transpose", [apart], "fused/by_head", perm=[0, 2, 1, 3], dtype=output.dtype)


def emit_whole_operands(builder: NodeBuilder, context: SiteContext) -> dict[str, Any]:
    """K and V, or the past and its rows, of all rows of the call: by the names that the operands had.

    Where the operator appends, the cache is laid out as its past, (1, Hkv, n, d), to be cut behind the past's rows.
    """
    site, original = context.site, _original(context)
    laid_out = {}
    for name, cache in ((site.k, context.key_nHD), (site.v, context.value_nHD)):
        rows = builder.node("Unsqueeze", [cache, builder.ints(0)], f"{name}/rows", dtype=cache.dtype)
        laid_out[name] = builder.node("Transpose", [rows], name, perm=[0, 2, 1, 3], dtype=cache.dtype)
    if original.appends:
        return {original.parts["past_key"]: laid_out[site.k], original.parts["past_value"]: laid_out[site.v]}
    paths = (*site.nodes.key_path, *site.nodes.value_path)
    builder.replay(context.nodes(tuple(name for name in paths if not name.startswith(PREFIX))), laid_out)
    return laid_out


def _original(context: SiteContext) -> FusedOriginal:
    if context.site.fused is None:
        raise ValueError(f"{context.site.name} was never a fused operator")
    return context.site.fused


def _results(original: FusedOriginal) -> list[str]:
    return [str(name) for name in original.node.output]


def _operand(
    builder: NodeBuilder,
    context: SiteContext,
    original: FusedOriginal,
    name: str,
    whole: dict[str, Any],
    row: Row | None,
) -> Any:
    """An operand as the call reads it."""
    if not name:
        return gs.Variable.empty()
    part = original.part_of(name)
    tensor = whole.get(name)
    if tensor is None:
        tensor = context.outer[name]
    if part in ("past_key", "past_value"):
        past = context.dims.past if row is None else row.past
        return _cut(builder, tensor, builder.ints(0), past, 2, f"fused/{part}")
    if row is None or part is None:
        return tensor
    new = part in _ROWS or (part in ("k", "v") and original.appends)
    if new:
        return _cut(builder, tensor, row.start, row.end, original.row_axis(part), f"fused/{part}")
    if part in ("k", "v"):
        return _cut(builder, tensor, builder.ints(0), row.extent, original.row_axis(part), f"fused/{part}")
    if part in _MASKS:
        own = _cut(builder, tensor, row.start, row.end, -2, f"fused/{part}/row")
        return _cut(builder, own, builder.ints(0), row.extent, -1, f"fused/{part}")
    return tensor


def _cut(builder: NodeBuilder, tensor: Any, start: Any, end: Any, axis: int, name: str) -> Any:
    return builder.node("Slice", [tensor, start, end, builder.ints(axis)], name, dtype=tensor.dtype)
