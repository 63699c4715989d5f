"""Operator cases that no single model has: `builtin:operators`.

Sizes are those of a small decoder (hidden 576, 9 heads over 3 KV heads of 64), and for element-wise kernels widths that
fill no vector register, or so wide that threads share a row (microsoft/onnxruntime#10058 reports Exp and Log).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto, helper

from qbpass.admission.probes.case import Case, Weight
from qbpass.admission.probes.catalogue_attention import attention
from qbpass.admission.probes.catalogue_parts import (
    FLOAT,
    HEADS,
    HIDDEN,
    INNER,
    MICROSOFT,
    POSITIVE,
    SCALE,
    WIDTH,
    N,
    Q,
    case_of,
    contrib,
    operand,
    result,
    weight,
)
from qbpass.admission.probes.fills import NORMAL, Fill

#: Of element-wise kernels. The last is shared by threads.
WIDTHS = (1, 3, 7, 17, 33, 100, 40_001)


def catalogue() -> list[Case]:
    """Every case, products first."""
    return [*_products(), *_quantized(), *attention(), *_elementwise()]


def _products() -> Iterator[Case]:
    for k, n in ((HIDDEN, HIDDEN), (HIDDEN, INNER), (INNER, HIDDEN), (HIDDEN, 8192)):
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        yield case_of([node], [operand("x", 1, Q, k)], [result(1, Q, n)], [weight("w", k, n)])
    gemm = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    weights = [weight("w", HIDDEN, HIDDEN), weight("b", HIDDEN, seed=2)]
    yield case_of([gemm], [operand("x", Q, HIDDEN)], [result(Q, HIDDEN)], weights)
    queries, keys = operand("q", 1, HEADS, Q, WIDTH), operand("k", 1, HEADS, N, WIDTH)
    turned = operand("k", 1, HEADS, WIDTH, N)
    scores = result(1, HEADS, Q, N)
    yield case_of([helper.make_node("MatMul", ["q", "k"], ["y"])], [queries, turned], [scores])
    for alpha in (1.0, SCALE):
        yield case_of([contrib("FusedMatMul", ["q", "k"], ["y"], transB=1, alpha=alpha)], [queries, keys], [scores])
    weighed = [operand("p", 1, HEADS, Q, N, fill=POSITIVE), operand("v", 1, HEADS, N, WIDTH)]
    yield case_of([helper.make_node("MatMul", ["p", "v"], ["y"])], weighed, [result(1, HEADS, Q, WIDTH)])
    masked = operand("x", 1, HEADS, Q, N, fill=Fill(kind="scores", low=-np.inf))
    yield case_of([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], [masked], [scores])


def _quantized() -> Iterator[Case]:
    for bits in (4, 8):
        for level in (0, 4):
            for block in (32, 64, 128):
                yield _n_bits(bits, level, block)
    x = operand("x", 1, Q, HIDDEN)
    uint8, int8 = TensorProto.UINT8, TensorProto.INT8
    quantize = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    whole = [result(1, Q, HIDDEN, elem_type=uint8), result(name="scale"), result(elem_type=uint8, name="zero")]
    yield case_of([quantize], [x], whole)
    weights = [
        Weight("w", int8, (HIDDEN, HIDDEN), fill=Fill(kind="integers", low=-127, high=127), seed=1),
        Weight("ws", FLOAT, (1,), value=np.array([0.01], np.float32)),
    ]
    fused = contrib("DynamicQuantizeMatMul", ["x", "w", "ws"], ["y"])
    yield case_of([fused], [x], [result(1, Q, HIDDEN)], weights)
    spelled = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["x8", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["x8", "w", "zero"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["sumf"], to=FLOAT),
        helper.make_node("Mul", ["scale", "ws"], ["both"]),
        helper.make_node("Mul", ["sumf", "both"], ["y"]),
    ]
    yield case_of(spelled, [x], [result(1, Q, HIDDEN)], weights, name="dynamic quantization")


def _n_bits(bits: int, level: int, block: int) -> Case:
    k, n = INNER, HIDDEN
    random = np.random.default_rng(0)
    packed = Weight(
        "b", TensorProto.UINT8, (n, k // block, block * bits // 8), fill=Fill(kind="integers", high=255), seed=1
    )
    scales = (random.random((n, k // block)) * 0.01 + 0.001).astype(np.float32)
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": level}
    node = contrib("MatMulNBits", ["x", "b", "s"], ["y"], **attributes)
    return case_of(
        [node], [operand("x", 1, Q, k)], [result(1, Q, n)], [packed, Weight("s", FLOAT, scales.shape, value=scales)]
    )


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
        x, z, y = (
            operand("x", 1, Q, width, fill=POSITIVE),
            operand("z", 1, Q, width, fill=POSITIVE),
            result(1, Q, width),
        )
        for operator in ("Div", "Pow", "Mul", "Add"):
            yield case_of([helper.make_node(operator, ["x", "z"], ["y"])], [x, z], [y])
    for width in WIDTHS[1:]:
        yield from _normalised(width)


def _unary(operator: str, domain: str, fill: Fill) -> Iterator[Case]:
    for width in WIDTHS:
        node = helper.make_node(operator, ["x"], ["y"], domain=domain)
        yield case_of([node], [operand("x", 1, Q, width, fill=fill)], [result(1, Q, width)])


def _normalised(width: int) -> Iterator[Case]:
    x, y, gain = operand("x", 1, Q, width), result(1, Q, width), weight("g", width)
    yield case_of([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], [x], [y])
    yield case_of([helper.make_node("LayerNormalization", ["x", "g"], ["y"])], [x], [y], [gain])
    yield case_of([helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["y"], axis=-1)], [x], [y], [gain])
    skip = contrib("SkipSimplifiedLayerNormalization", ["x", "z", "g"], ["y"])
    yield case_of([skip], [x, operand("z", 1, Q, width)], [y], [gain])
    axes = Weight("a", TensorProto.INT64, (1,), value=np.array([-1], np.int64))
    yield case_of([helper.make_node("ReduceMean", ["x", "a"], ["y"])], [x], [result(1, Q, 1)], [axes])
