"""Operator cases that no single model has: `builtin:operators`.

Sizes are those of a small decoder (hidden 576, 9 heads over 3 KV heads of 64), and for element-wise kernels widths that
fill no vector register, or so wide that threads share a row (microsoft/onnxruntime#10058 reports Exp and Log).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from qbpass.admission.probes.case import CASE, Case, Operand, Result, Weight
from qbpass.admission.probes.fills import NORMAL, Fill
from qbpass.admission.probes.forms import LOWERED
from qbpass.admission.probes.sizes import Size

GRAPH = "builtin"
MICROSOFT = "com.microsoft"
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
HEADS, KV_HEADS, WIDTH = 9, 3, 64
HIDDEN, INNER = 576, 1536
SCALE = 1 / 8  # 1 / sqrt(WIDTH)

Q, N, PAST = Size(rows=1), Size(keys=1), Size(rows=-1, keys=1)
POSITIVE = Fill(kind="positive")
#: Of element-wise kernels. The last is shared by threads.
WIDTHS = (1, 3, 7, 17, 33, 100, 40_001)


def catalogue() -> list[Case]:
    """Every case, products first."""
    return [*_products(), *_quantized(), *_attention(), *_elementwise()]


def _dims(*parts: Size | int) -> tuple[Size, ...]:
    return tuple(part if isinstance(part, Size) else Size(fixed=part) for part in parts)


def _operand(name: str, *dims: Size | int, fill: Fill = NORMAL, elem_type: int = FLOAT) -> Operand:
    return Operand(name, elem_type, _dims(*dims), fill)


def _weight(name: str, *dims: int, seed: int = 1) -> Weight:
    return Weight(name, FLOAT, dims, fill=Fill(kind="normal", scale=dims[0] ** -0.5), seed=seed)


def _case(
    nodes: list[onnx.NodeProto],
    operands: list[Operand],
    results: list[Result],
    weights: list[Weight] | None = None,
    *,
    name: str = "",
    lowered: list[onnx.NodeProto] | None = None,
    opset: int = 21,
    carried: dict[str, str] | None = None,
) -> Case:
    forms = {CASE: tuple(nodes)} | ({LOWERED: tuple(lowered)} if lowered else {})
    domain = "" if name else nodes[0].domain
    opsets = {"": opset, MICROSOFT: 1}
    operator = name or nodes[0].op_type
    return Case(
        operator,
        domain,
        forms,
        tuple(operands),
        tuple(weights or ()),
        tuple(results),
        opsets,
        GRAPH,
        carried=carried or {},
    )


def _y(*dims: Size | int, elem_type: int = FLOAT, name: str = "y") -> Result:
    return Result(name, elem_type, _dims(*dims))


def _ms(operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, outputs, domain=MICROSOFT, **attributes)


def _products() -> Iterator[Case]:
    for k, n in ((HIDDEN, HIDDEN), (HIDDEN, INNER), (INNER, HIDDEN), (HIDDEN, 8192)):
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        yield _case([node], [_operand("x", 1, Q, k)], [_y(1, Q, n)], [_weight("w", k, n)])
    gemm = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    weights = [_weight("w", HIDDEN, HIDDEN), _weight("b", HIDDEN, seed=2)]
    yield _case([gemm], [_operand("x", Q, HIDDEN)], [_y(Q, HIDDEN)], weights)
    queries, keys = _operand("q", 1, HEADS, Q, WIDTH), _operand("k", 1, HEADS, N, WIDTH)
    turned = _operand("k", 1, HEADS, WIDTH, N)
    scores = _y(1, HEADS, Q, N)
    yield _case([helper.make_node("MatMul", ["q", "k"], ["y"])], [queries, turned], [scores])
    for alpha in (1.0, SCALE):
        yield _case([_ms("FusedMatMul", ["q", "k"], ["y"], transB=1, alpha=alpha)], [queries, keys], [scores])
    weighed = [_operand("p", 1, HEADS, Q, N, fill=POSITIVE), _operand("v", 1, HEADS, N, WIDTH)]
    yield _case([helper.make_node("MatMul", ["p", "v"], ["y"])], weighed, [_y(1, HEADS, Q, WIDTH)])
    masked = _operand("x", 1, HEADS, Q, N, fill=Fill(kind="scores", low=-np.inf))
    yield _case([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], [masked], [scores])


def _quantized() -> Iterator[Case]:
    for bits in (4, 8):
        for level in (0, 4):
            for block in (32, 64, 128):
                yield _n_bits(bits, level, block)
    x = _operand("x", 1, Q, HIDDEN)
    uint8, int8 = TensorProto.UINT8, TensorProto.INT8
    quantize = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    whole = [_y(1, Q, HIDDEN, elem_type=uint8), _y(name="scale"), _y(elem_type=uint8, name="zero")]
    yield _case([quantize], [x], whole)
    weights = [
        Weight("w", int8, (HIDDEN, HIDDEN), fill=Fill(kind="integers", low=-127, high=127), seed=1),
        Weight("ws", FLOAT, (1,), value=np.array([0.01], np.float32)),
    ]
    fused = _ms("DynamicQuantizeMatMul", ["x", "w", "ws"], ["y"])
    yield _case([fused], [x], [_y(1, Q, HIDDEN)], weights)
    spelled = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["x8", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["x8", "w", "zero"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["sumf"], to=FLOAT),
        helper.make_node("Mul", ["scale", "ws"], ["both"]),
        helper.make_node("Mul", ["sumf", "both"], ["y"]),
    ]
    yield _case(spelled, [x], [_y(1, Q, HIDDEN)], weights, name="dynamic quantization")


def _n_bits(bits: int, level: int, block: int) -> Case:
    k, n = INNER, HIDDEN
    random = np.random.default_rng(0)
    packed = Weight(
        "b", TensorProto.UINT8, (n, k // block, block * bits // 8), fill=Fill(kind="integers", high=255), seed=1
    )
    scales = (random.random((n, k // block)) * 0.01 + 0.001).astype(np.float32)
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": level}
    node = _ms("MatMulNBits", ["x", "b", "s"], ["y"], **attributes)
    return _case(
        [node], [_operand("x", 1, Q, k)], [_y(1, Q, n)], [packed, Weight("s", FLOAT, scales.shape, value=scales)]
    )


def _attention() -> Iterator[Case]:
    mask = _operand("m", 1, 1, Q, N, fill=Fill(kind="mask", low=-np.inf))
    qkv = [_operand("q", 1, HEADS, Q, WIDTH), _operand("k", 1, HEADS, N, WIDTH), _operand("v", 1, HEADS, N, WIDTH)]
    whole = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"], scale=SCALE)
    yield _case([whole], [*qkv, mask], [_y(1, HEADS, Q, WIDTH)], lowered=_spelled("q", "k", "v", "y"), opset=23)
    caches = [_operand(name, 1, HEADS, PAST, WIDTH) for name in ("pk", "pv")]
    new = [_operand(name, 1, HEADS, Q, WIDTH) for name in ("q", "k", "v")]
    cached = helper.make_node("Attention", ["q", "k", "v", "m", "pk", "pv"], ["y", "nk", "nv"], scale=SCALE)
    presents = [_y(1, HEADS, N, WIDTH, name=name) for name in ("nk", "nv")]
    carried = {"pk": "nk", "pv": "nv"}
    yield _case([cached], [*new, mask, *caches], [_y(1, HEADS, Q, WIDTH), *presents], opset=23, carried=carried)
    yield _grouped_query()
    yield _multi_head()


def _spelled(q: str, k: str, v: str, y: str) -> list[onnx.NodeProto]:
    """scores, mask, softmax, values: in the operators that ONNX Runtime's own optimizer makes of them."""
    return [
        _ms("FusedMatMul", [q, k], ["scores"], transB=1, alpha=SCALE),
        helper.make_node("Add", ["scores", "m"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", v], [y]),
    ]


def _grouped_query() -> Case:
    """Rows (1, q, heads * d), a past for KV heads, counts of keys; spelled out with K and V repeated over the group."""
    rows = [_operand("q", 1, Q, HEADS * WIDTH)] + [_operand(n, 1, Q, KV_HEADS * WIDTH) for n in ("k", "v")]
    caches = [_operand(name, 1, KV_HEADS, PAST, WIDTH) for name in ("pk", "pv")]
    last = _operand("last", 1, fill=Fill(kind="affine", table=((0, 1, -1),)), elem_type=INT32)
    total = _operand("total", fill=Fill(kind="affine", table=((0, 1, 0),)), elem_type=INT32)
    mask = _operand("m", 1, 1, Q, N, fill=Fill(kind="mask", low=-np.inf))  # read by the spelled-out form alone
    inputs = ["q", "k", "v", "pk", "pv", "last", "total"]
    attributes = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "scale": SCALE}
    node = _ms("GroupQueryAttention", inputs, ["y", "nk", "nv"], **attributes)
    results = [_y(1, Q, HEADS * WIDTH)] + [_y(1, KV_HEADS, N, WIDTH, name=name) for name in ("nk", "nv")]
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
    return _case([node], [*rows, *caches, last, total, mask], results, weights, lowered=lowered, carried=carried)


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
    rows = [_operand(name, 1, Q, HEADS * WIDTH) for name in ("q", "k", "v")]
    caches = [_operand(name, 1, HEADS, PAST, WIDTH) for name in ("pk", "pv")]
    bias = _operand("m", 1, 1, Q, N, fill=Fill(kind="mask", low=-1e9))
    inputs = ["q", "k", "v", "", "", "m", "pk", "pv"]
    node = _ms("MultiHeadAttention", inputs, ["y", "nk", "nv"], num_heads=HEADS, scale=SCALE)
    results = [_y(1, Q, HEADS * WIDTH)] + [_y(1, HEADS, N, WIDTH, name=name) for name in ("nk", "nv")]
    return _case([node], [*rows, *caches, bias], results, carried={"pk": "nk", "pv": "nv"})


def _elementwise() -> Iterator[Case]:
    for operator, domain in (
        *((name, "") for name in ("Exp", "Tanh", "Sigmoid", "Erf", "Gelu", "Sin", "Cos", "Softplus")),
        ("QuickGelu", MICROSOFT),
        ("FastGelu", MICROSOFT),
    ):
        yield from _unary(operator, domain, NORMAL)
    for operator in ("Log", "Sqrt", "Reciprocal"):
        yield from _unary(operator, "", POSITIVE)
    for width in WIDTHS:
        x, z, y = _operand("x", 1, Q, width, fill=POSITIVE), _operand("z", 1, Q, width, fill=POSITIVE), _y(1, Q, width)
        for operator in ("Div", "Pow", "Mul", "Add"):
            yield _case([helper.make_node(operator, ["x", "z"], ["y"])], [x, z], [y])
    for width in WIDTHS[1:]:
        yield from _normalised(width)


def _unary(operator: str, domain: str, fill: Fill) -> Iterator[Case]:
    for width in WIDTHS:
        node = helper.make_node(operator, ["x"], ["y"], domain=domain)
        yield _case([node], [_operand("x", 1, Q, width, fill=fill)], [_y(1, Q, width)])


def _normalised(width: int) -> Iterator[Case]:
    x, y, gain = _operand("x", 1, Q, width), _y(1, Q, width), _weight("g", width)
    yield _case([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], [x], [y])
    yield _case([helper.make_node("LayerNormalization", ["x", "g"], ["y"])], [x], [y], [gain])
    yield _case([helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["y"], axis=-1)], [x], [y], [gain])
    skip = _ms("SkipSimplifiedLayerNormalization", ["x", "z", "g"], ["y"])
    yield _case([skip], [x, _operand("z", 1, Q, width)], [y], [gain])
    axes = Weight("a", TensorProto.INT64, (1,), value=np.array([-1], np.int64))
    yield _case([helper.make_node("ReduceMean", ["x", "a"], ["y"])], [x], [_y(1, Q, 1)], [axes])
