"""The grid's four axes, and the name of a cell. Rows of a block, 1 to 4, are counted within each cell."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

#: What wrote the graph, and how attention lies in it.
EXPORTERS = {
    "eager": "torch's exporter, attention as products and a softmax",
    "sdpa": "torch's exporter, its decomposition of scaled_dot_product_attention",
    "onnx": "torch's exporter, one ONNX Attention operator a layer (opset 23)",
    "genai": "onnxruntime-genai's builder, one GroupQueryAttention operator a layer",
}

#: How weights and activations are stored (formats.py). An int format is named by bits and block: int4-32.
FORMATS = {
    "fp32": "as exported",
    "fp16": "half precision, cache and logits too, by ONNX Runtime's converter",
    "int8-32": "MatMulNBits, symmetric, accuracy level 4",
    "int8-32-zp": "MatMulNBits with zero points, accuracy level 4",
    "int4-32": "MatMulNBits, symmetric, accuracy level 4",
    "int4-32-zp": "MatMulNBits with zero points, accuracy level 4",
    "int4-128": "MatMulNBits, symmetric, accuracy level 4",
    "int4-128-zp": "MatMulNBits with zero points, accuracy level 4",
    "int4-acc0": "MatMulNBits in blocks of 32, symmetric, accuracy level 0: computed in float32",
    "dynamic-int8": "quantize_dynamic: the scale of a product's input is found in each call",
    "qdq-int8": "quantize_static, QDQ form, of every product with a weight: scales are constants",
    "builder-int8": "the int8 of genai's builder",
    "builder-int4": "the int4 of genai's builder",
}
ONLY_GENAI = ("builder-int8", "builder-int4")  # its fp16 for the CPU is none of its combinations, and does not run

LAYOUTS = ("qb", "pq", "gs", "auto")
PREFILLS = ("whole", "chunks:4", "one")
WIDTHS = (1, 2, 3, 4)


@dataclass(frozen=True, order=True)
class Model:
    exporter: str
    weights: str

    @property
    def name(self) -> str:
        return f"{self.exporter}/{self.weights}"


@dataclass(frozen=True, order=True)
class Cell:
    model: Model
    layout: str
    prefill: str

    @property
    def name(self) -> str:
        return f"{self.model.name}/{self.layout}/{self.prefill}"


#: Exporters' names begin with it where the model is SmolLM2-135M-Instruct.
SMOLLM2 = "smollm2-"
REAL = (
    Cell(Model("smollm2-sdpa", "fp32"), "qb", "whole"),
    Cell(Model("smollm2-sdpa", "int4-128"), "qb", "whole"),
    Cell(Model("smollm2-genai", "fp32"), "pq", "whole"),
    Cell(Model("smollm2-genai", "builder-int4"), "pq", "whole"),
)


def models() -> list[Model]:
    return [Model(e, f) for e, f in product(EXPORTERS, FORMATS) if e == "genai" or f not in ONLY_GENAI]


def cells(exporters: list[str], weights: list[str], layouts: list[str], prefills: list[str]) -> list[Cell]:
    """The cells of these parts of the axes, in the axes' order; an empty list stands for the whole axis."""
    chosen = [m for m in models() if m.exporter in (exporters or EXPORTERS) and m.weights in (weights or FORMATS)]
    parts = product(chosen, layouts or LAYOUTS, prefills or PREFILLS)
    return [Cell(model, layout, prefill) for model, layout, prefill in parts]
