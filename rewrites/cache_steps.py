"""Operations on single elements between the cache and a product are moved in front of the cache.

Some exports multiply keys by sqrt(scale) in every call; where a provider computes a float16 graph in float32, every
call casts the whole cache. What such an operation makes of an element is the same wherever it is done, so it is done
once, to the new rows, before they are written. The cache holds what the product reads, in the product's own type:
nothing is left to do on the way, for any layout.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_graphsurgeon as gs

from qbpass.admission.site import AttentionSite, ElementStep
from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.kv_cache import numpy_dtype


def move_steps(
    builder: NodeBuilder,
    site: AttentionSite,
    new: dict[str, Any],
    producers: dict[str, gs.Node],
    tensors: dict[str, Any],
) -> dict[str, Any]:
    """The new rows (1, Hkv, q, d) with every step done; the steps' nodes become identities in the graph."""
    moved = {}
    for part, path, steps in (
        ("key", site.nodes.key_path, site.key_steps),
        ("value", site.nodes.value_path, site.value_steps),
    ):
        rows = new[part]
        for number, step in enumerate(steps):
            rows = _step(builder, step, producers[step.node], rows, tensors, f"{part}/step{number}")
            _make_identity(producers[step.node], step, tensors)
        _state_dtypes((producers[name] for name in path), new[part].dtype, steps, rows.dtype)
        moved[part] = rows
    return moved


def _step(builder: NodeBuilder, step: ElementStep, node: gs.Node, rows: Any, tensors: dict[str, Any], name: str) -> Any:
    if step.to:
        return builder.node("Cast", [rows], name, dtype=numpy_dtype(step.to), **node.attrs)
    scalar = builder.reshape(tensors[step.factor], builder.ints(1), f"{name}/factor")
    scalar.dtype = rows.dtype
    return builder.node(node.op, [rows, scalar], name, dtype=rows.dtype)


def _make_identity(node: gs.Node, step: ElementStep, tensors: dict[str, Any]) -> None:
    node.op = "Identity"
    node.attrs.clear()
    node.inputs.clear()
    node.inputs.append(tensors[step.kept])


def _state_dtypes(path: Iterable[gs.Node], before: Any, steps: tuple[ElementStep, ...], after: Any) -> None:
    """Where casts are gone, every row on the path has the type that the last one gave it."""
    floats = [before, *(numpy_dtype(step.to) for step in steps if step.to)]
    for node in path:
        for output in node.outputs:
            if output.dtype is not None and output.dtype in floats:  # sizes are on the path, too
                output.dtype = after
