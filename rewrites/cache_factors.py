"""Scalar factors between the cache and a product are moved in front of the cache.

Some exports multiply keys by sqrt(scale) in every call. A product of two floats is the same wherever it is computed, so
the new rows are multiplied once, before they are written, and the cache holds what the product reads: nothing is left
to do on the way, for any layout.
"""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs

from qbpass.admission.site import AttentionSite, ScalarFactor
from qbpass.rewrites.builder import NodeBuilder


def move_factors(
    builder: NodeBuilder,
    site: AttentionSite,
    new: dict[str, Any],
    producers: dict[str, gs.Node],
    tensors: dict[str, Any],
) -> dict[str, Any]:
    """The new rows (1, Hkv, q, d) with every factor applied; the factors' nodes become identities in the graph."""
    moved = {}
    for part, factors in (("key", site.key_factors), ("value", site.value_factors)):
        rows = new[part]
        for number, factor in enumerate(factors):
            node = producers[factor.node]
            scalar = builder.reshape(tensors[factor.factor], builder.ints(1), f"{part}/factor{number}")
            scalar.dtype = rows.dtype
            rows = builder.node(node.op, [rows, scalar], f"{part}/times{number}", dtype=rows.dtype)
            _make_identity(node, factor, tensors)
        moved[part] = rows
    return moved


def _make_identity(node: gs.Node, factor: ScalarFactor, tensors: dict[str, Any]) -> None:
    node.op = "Identity"
    node.attrs.clear()
    node.inputs.clear()
    node.inputs.append(tensors[factor.kept])
