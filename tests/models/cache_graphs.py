"""One-layer decoders in ONNX's text form, whose cache is written as the test says."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, parser

VOCABULARY, HIDDEN, HEADS, HEAD_DIM = 29, 16, 2, 8

_WEIGHTS = {
    "table": (VOCABULARY, HIDDEN),
    "head": (HIDDEN, VOCABULARY),
    **dict.fromkeys(("wq", "wk", "wv", "wo"), (HIDDEN, HIDDEN)),
}

BEFORE = """
    x = Gather (table, input_ids)
    seen = Cast <to = 9> (attention_mask)
    bias = Where (seen, zero, low)
    q_rows = MatMul (x, wq)
    k_rows = MatMul (x, wk)
    v_rows = MatMul (x, wv)
    q_split = Reshape (q_rows, by_head)
    k_split = Reshape (k_rows, by_head)
    v_split = Reshape (v_rows, by_head)
    q = Transpose <perm = [0, 2, 1, 3]> (q_split)
    k = Transpose <perm = [0, 2, 1, 3]> (k_split)
    v = Transpose <perm = [0, 2, 1, 3]> (v_split)
"""
AFTER = """
    o_split = Transpose <perm = [0, 2, 1, 3]> (o)
    o_rows = Reshape (o_split, by_row)
    attended = MatMul (o_rows, wo)
    h = Add (x, attended)
    logits = MatMul (h, head)
"""
_CONSTANTS = """
    float zero = {0}, float low = {-1e9}, float step = {0.1}, int64[4] by_head = {1, -1, 2, 8},
    int64[3] by_row = {1, -1, 16},
    int64[1] zero_at = {0}, int64[1] one_at = {1}, int64[1] two_at = {2}, int64[1] end = {9223372036854775807},
    int64[1] last = {-1}, int64[1] third_last = {-3}, int64[2] halves = {16, 16}, int64[3] fold = {2, -1, 8},
    int64[3] fold_keys = {2, 8, -1}, int64[4] unfold = {1, 2, -1, 8}
"""


def attend(keys: str, values: str, queries: str = "q", result: str = "o", bias: str = "bias") -> str:
    """Attention over tensors (1, heads, n, d)."""
    return f"""
    {result}_kt = Transpose <perm = [0, 1, 3, 2]> ({keys})
    {result}_scores = MatMul ({queries}, {result}_kt)
    {result}_biased = Add ({result}_scores, {bias})
    {result}_p = Softmax <axis = -1> ({result}_biased)
    {result} = MatMul ({result}_p, {values})
    """


def append(axis: int = 2) -> str:
    """The usual cache."""
    return f"""
    present_k = Concat <axis = {axis}> (past_k, k)
    present_v = Concat <axis = {axis}> (past_v, v)
    """


CACHE = "float[1,2,p,8] past_k, float[1,2,p,8] past_v"
PRESENT = "float[1,2,n,8] present_k, float[1,2,n,8] present_v"


def decoder(
    cache: str,
    inputs: str = CACHE,
    outputs: str = PRESENT,
    *,
    weights: dict[str, tuple[int, ...]] | None = None,
    before: str = BEFORE,
    after: str = AFTER,
    ids: str = "int64[1,q] input_ids, int64[1,n] attention_mask",
) -> onnx.ModelProto:
    """A decoder with token ids, a mask, hidden width 16, two heads of dimension 8.

    cache: from q, k, v (1, heads, queries, d), their unsplit rows and `bias` to the presents and `o`.
    """
    ins, outs = (", ".join(filter(None, parts)) for parts in ((ids, inputs), ("float[1,q,29] logits", outputs)))
    model: onnx.ModelProto = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
        g ({ins}) => ({outs}) <{_CONSTANTS}> {{ {before} {cache} {after} }}"""
    )
    for name, shape in (_WEIGHTS | (weights or {})).items():
        model.graph.initializer.append(numpy_helper.from_array(np.full(shape, 0.01, np.float32), name))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int8), "middle"))
    return model
