"""Builtin cases of fused attention, each with the form that spells it out where one is known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper

from qbpass.admission.probes.case import Case, Weight
from qbpass.admission.probes.catalogue_parts import (
    HEADS,
    INT32,
    KV_HEADS,
    PAST,
    SCALE,
    WIDTH,
    N,
    Q,
    case_of,
    contrib,
    operand,
    result,
)
from qbpass.admission.probes.fills import Fill


def attention() -> Iterator[Case]:
    mask = operand("m", 1, 1, Q, N, fill=Fill(kind="mask", low=-np.inf))
    qkv = [operand("q", 1, HEADS, Q, WIDTH), operand("k", 1, HEADS, N, WIDTH), operand("v", 1, HEADS, N, WIDTH)]
    whole = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"], scale=SCALE)
    yield case_of([whole], [*qkv, mask], [result(1, HEADS, Q, WIDTH)], lowered=_spelled("q", "k", "v", "y"), opset=23)
    caches = [operand(name, 1, HEADS, PAST, WIDTH) for name in ("pk", "pv")]
    new = [operand(name, 1, HEADS, Q, WIDTH) for name in ("q", "k", "v")]
    cached = helper.make_node("Attention", ["q", "k", "v", "m", "pk", "pv"], ["y", "nk", "nv"], scale=SCALE)
    presents = [result(1, HEADS, N, WIDTH, name=name) for name in ("nk", "nv")]
    carried = {"pk": "nk", "pv": "nv"}
    yield case_of([cached], [*new, mask, *caches], [result(1, HEADS, Q, WIDTH), *presents], opset=23, carried=carried)
    yield _grouped_query()
    yield _multi_head()


def _spelled(q: str, k: str, v: str, y: str) -> list[onnx.NodeProto]:
    """scores, mask, softmax, values: in the operators that ONNX Runtime's own optimizer makes of them."""
    return [
        contrib("FusedMatMul", [q, k], ["scores"], transB=1, alpha=SCALE),
        helper.make_node("Add", ["scores", "m"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", v], [y]),
    ]


def _grouped_query() -> Case:
    """Rows (1, q, heads * d), a past for KV heads, counts of keys; spelled out with K and V repeated over the group."""
    rows = [operand("q", 1, Q, HEADS * WIDTH)] + [operand(n, 1, Q, KV_HEADS * WIDTH) for n in ("k", "v")]
    caches = [operand(name, 1, KV_HEADS, PAST, WIDTH) for name in ("pk", "pv")]
    last = operand("last", 1, fill=Fill(kind="affine", table=((0, 1, -1),)), elem_type=INT32)
    total = operand("total", fill=Fill(kind="affine", table=((0, 1, 0),)), elem_type=INT32)
    mask = operand("m", 1, 1, Q, N, fill=Fill(kind="mask", low=-np.inf))  # read by the spelled-out form alone
    inputs = ["q", "k", "v", "pk", "pv", "last", "total"]
    attributes = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "scale": SCALE}
    node = contrib("GroupQueryAttention", inputs, ["y", "nk", "nv"], **attributes)
    results = [result(1, Q, HEADS * WIDTH)] + [result(1, KV_HEADS, N, WIDTH, name=name) for name in ("nk", "nv")]
    shapes = {
        "qs": (1, -1, HEADS, WIDTH),
        "ks": (1, -1, KV_HEADS, WIDTH),
        "rs": (1, HEADS, -1, WIDTH),
        "ys": (1, -1, HEADS * WIDTH),
    }
    shapes |= {"axis": (2,), "group": (1, 1, HEADS // KV_HEADS, 1, 1)}
    weights = [Weight(n, TensorProto.INT64, (len(v),), value=np.array(v, np.int64)) for n, v in shapes.items()]
    lowered = [
        helper.make_node("Reshape", ["q", "qs"], ["q4"]),
        helper.make_node("Transpose", ["q4"], ["qt"], perm=(0, 2, 1, 3)),
        *_appended("k", "pk", "nk"),
        *_appended("v", "pv", "nv"),
        *_spelled("qt", "nk.all", "nv.all", "o"),
        helper.make_node("Transpose", ["o"], ["ot"], perm=(0, 2, 1, 3)),
        helper.make_node("Reshape", ["ot", "ys"], ["y"]),
    ]
    carried = {"pk": "nk", "pv": "nv"}
    return case_of([node], [*rows, *caches, last, total, mask], results, weights, lowered=lowered, carried=carried)


def _appended(new: str, past: str, present: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Reshape", [new, "ks"], [f"{new}4"]),
        helper.make_node("Transpose", [f"{new}4"], [f"{new}t"], perm=(0, 2, 1, 3)),
        helper.make_node("Concat", [past, f"{new}t"], [present], axis=2),
        helper.make_node("Unsqueeze", [present, "axis"], [f"{present}5"]),
        helper.make_node("Expand", [f"{present}5", "group"], [f"{present}e"]),
        helper.make_node("Reshape", [f"{present}e", "rs"], [f"{present}.all"]),
    ]


def _multi_head() -> Case:
    rows = [operand(name, 1, Q, HEADS * WIDTH) for name in ("q", "k", "v")]
    caches = [operand(name, 1, HEADS, PAST, WIDTH) for name in ("pk", "pv")]
    bias = operand("m", 1, 1, Q, N, fill=Fill(kind="mask", low=-1e9))
    inputs = ["q", "k", "v", "", "", "m", "pk", "pv"]
    node = contrib("MultiHeadAttention", inputs, ["y", "nk", "nv"], num_heads=HEADS, scale=SCALE)
    results = [result(1, Q, HEADS * WIDTH)] + [result(1, HEADS, N, WIDTH, name=name) for name in ("nk", "nv")]
    return case_of([node], [*rows, *caches, bias], results, carried={"pk": "nk", "pv": "nv"})
