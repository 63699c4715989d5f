"""The two products of attention over the cache's own layout, with their rows formed as the plan says.

K and V are (n, Hkv, d) in memory. `FusedMatMul` with transBatchB reads such a tensor as Hkv matrices of (n, d) with a
row stride of Hkv * d: neither a transpose nor a copy nor a repeat over the group.
"""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs

from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.plan import ProductForm

MICROSOFT = "com.microsoft"


def emit_qk(builder: NodeBuilder, qk: gs.Node, q_1HqD: Any, key_nHD: Any, form: ProductForm, scores_shape: Any) -> Any:
    """Scores (Hkv, G, q, 1, n) of (1, H, q, d) queries and (n, Hkv, d) keys; `scores_shape` is that shape.

    The scale fused into the exported product (FusedMatMul's alpha) is kept; other factors are replayed by the caller.
    """
    heads, width = key_nHD.shape[1:]
    alpha = float(qk.attrs.get("alpha", 1.0))
    if form == "rows":
        rows = builder.reshape(q_1HqD, builder.ints(heads, -1, width), "qk/rows")  # (Hkv, G*q, d)
        scores = _matmul(builder, rows, key_nHD, "qk", alpha=alpha, transB=1, transBatchB=1)
    else:
        rows = builder.reshape(q_1HqD, builder.ints(heads, -1, 1, width), "qk/rows")  # (Hkv, G*q, 1, d)
        if form == "batch":
            keys = builder.reshape(key_nHD, builder.ints(-1, heads, 1, width), "qk/keys")
            scores = _matmul(builder, rows, keys, "qk", alpha=alpha, transB=1, transBatchB=1)
        else:
            turned = builder.node("Transpose", [key_nHD], "qk/keys_HDn", perm=[1, 2, 0], dtype=key_nHD.dtype)
            keys = builder.node("Unsqueeze", [turned, builder.ints(1)], "qk/keys", dtype=key_nHD.dtype)
            scores = _matmul(builder, rows, keys, "qk", alpha=alpha)
    return builder.reshape(scores, scores_shape, "scores")


def emit_av(builder: NodeBuilder, probs: Any, value_nHD: Any, form: ProductForm) -> Any:
    """(Hkv, G, r, 1, dv) of r rows of probabilities (Hkv, G, r, 1, n_s) and values (n_s, Hkv, dv).

    Under batch every row of every head is a one-row product, values broadcast over the group and over the rows; under
    rows the group and the rows are GEMM rows.
    """
    heads, width = value_nHD.shape[1:]
    if form != "rows":
        values = builder.reshape(value_nHD, builder.ints(-1, heads, 1, 1, width), "av/values")
        return _matmul(builder, probs, values, "av", alpha=1.0, transBatchB=1)
    shape = builder.node("Shape", [probs], "av/shape", dtype="int64")
    sizes = [
        builder.node("Slice", [shape, *map(builder.ints, at)], f"av/{name}", dtype="int64")
        for name, at in (("lead", (0, 3)), ("extent", (4, 5)))
    ]
    folded = builder.node("Concat", [builder.ints(heads, -1), sizes[1]], "av/folded", axis=0, dtype="int64")
    mixed = _matmul(builder, builder.reshape(probs, folded, "av/rows"), value_nHD, "av", alpha=1.0, transBatchB=1)
    unfolded = builder.node("Concat", [sizes[0], builder.ints(1, width)], "av/unfolded", axis=0, dtype="int64")
    # A segment may have no rows, and a 0 in Reshape's target otherwise stands for the operand's own size.
    return builder.node("Reshape", [mixed, unfolded], "av/out", dtype=mixed.dtype, allowzero=1)


def _matmul(builder: NodeBuilder, a: Any, b: Any, name: str, **attrs: Any) -> Any:
    return builder.node("FusedMatMul", [a, b], name, domain=MICROSOFT, dtype=a.dtype, **attrs)
