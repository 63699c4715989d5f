"""One kind of node as a small model of its own, its numbers of rows and keys left open."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qbpass.admission.probes.fills import Array, Fill, causal, draw
from qbpass.admission.probes.sizes import Size, fixed

CASE = "case"  # the form of a case that a graph has; others are compared with it
OPEN = "open"  # the same nodes, with no length declared: for calls of other shapes than the graph's own
IR_VERSION = 10


@dataclass(frozen=True)
class Tensor:
    """An operand or a result: its axes' lengths follow the call's rows and keys."""

    name: str
    elem_type: int
    dims: tuple[Size, ...]

    @property
    def row_axis(self) -> int | None:
        return next((axis for axis, size in enumerate(self.dims) if size.is_rows), None)

    @property
    def key_axis(self) -> int | None:
        return next((axis for axis, size in enumerate(self.dims) if size.is_keys), None)


@dataclass(frozen=True)
class Operand(Tensor):
    """A tensor that the call brings."""

    fill: Fill

    def draw(self, q: int, n: int, random: np.random.Generator) -> Array:
        """Values for a call of q rows over n keys."""
        shape = tuple(size.at(q, n) for size in self.dims)
        dtype, fill = helper.tensor_dtype_to_np_dtype(self.elem_type), self.fill
        if fill.kind == "affine":
            return np.array([Size(*map(int, e)).at(q, n) for e in fill.table], dtype).reshape(shape)
        if fill.kind == "bits":
            return self._allowed(shape) if self._is_plane else random.integers(0, 2, shape).astype(bool)
        if not fill.masks:
            return draw(fill, shape, dtype, random)
        scores = random.standard_normal(shape, dtype=np.float32) * np.float32(fill.scale)
        values = np.zeros(shape, np.float32) if fill.kind == "mask" else scores
        return np.where(self._allowed(shape), values.astype(np.float64), fill.low).astype(dtype)

    @property
    def _is_plane(self) -> bool:
        return self.row_axis is not None and self.key_axis is not None

    def _allowed(self, shape: tuple[int, ...]) -> Array:
        """Where a row may look; everywhere, for a tensor that lacks rows or keys."""
        if self.row_axis is None or self.key_axis is None:
            return np.ones(shape, bool)
        rows, keys = shape[self.row_axis], shape[self.key_axis]
        plane = causal(rows, keys) if self.row_axis < self.key_axis else causal(rows, keys).T
        wanted = [length if axis in (self.row_axis, self.key_axis) else 1 for axis, length in enumerate(shape)]
        return np.broadcast_to(plane.reshape(wanted), shape)


@dataclass(frozen=True)
class Result(Tensor):
    """A tensor that the small model gives."""


@dataclass(frozen=True)
class Weight:
    """A constant of the model: `value` where it is the model's own, drawn by `fill` from `seed` where it is not."""

    name: str
    elem_type: int
    dims: tuple[int, ...]
    value: Array | None = None
    fill: Fill | None = None
    seed: int = 0

    def array(self) -> Array:
        if self.value is not None:
            return self.value
        assert self.fill is not None
        dtype = helper.tensor_dtype_to_np_dtype(self.elem_type)
        return draw(self.fill, self.dims, dtype, np.random.default_rng(self.seed))


@dataclass(frozen=True, eq=False)
class Case:
    """operator: the node's, or what a small subgraph is called. forms: name -> nodes over the same operands."""

    operator: str
    domain: str
    forms: Mapping[str, tuple[onnx.NodeProto, ...]]
    operands: tuple[Operand, ...]
    weights: tuple[Weight, ...]
    results: tuple[Result, ...]
    opsets: Mapping[str, int]
    graph: str = ""  # which graph it was found in
    where: str = ""  # the first such node's output
    count: int = 1
    carried: Mapping[str, str] = field(default_factory=dict)  # past operand -> present result, of fused attention

    @property
    def nodes(self) -> tuple[onnx.NodeProto, ...]:
        return self.forms[CASE]

    def operand(self, name: str) -> Operand:
        return next(operand for operand in self.operands if operand.name == name)

    @cached_property
    def has_rows(self) -> bool:
        return any(operand.row_axis is not None for operand in self.operands)

    @cached_property
    def has_keys(self) -> bool:
        return any(operand.key_axis is not None for operand in self.operands)

    @cached_property
    def has_past(self) -> bool:
        """Whether its number of keys grows with its rows: then a block is compared with a chain of calls."""
        return bool(self.carried)

    def draw(self, q: int, n: int, random: np.random.Generator) -> dict[str, Array]:
        return {operand.name: operand.draw(q, n, random) for operand in self.operands}

    def model(self, form: str = CASE, *, drawn_weights: bool = True) -> onnx.ModelProto:
        """The small model. drawn_weights=False: weights that are drawn from a seed become inputs, so that the file
        stays small; a reader draws them and makes them constants again.
        """
        nodes = self.forms[CASE if form == OPEN else form]
        reads = {name for node in nodes for name in node.input}
        weights = [w for w in self.weights if w.name in reads]
        stored = [w for w in weights if w.value is not None or drawn_weights]
        inputs = [(o.name, o.elem_type, o.dims) for o in self.operands if o.name in reads]
        inputs += [(w.name, w.elem_type, fixed(*w.dims)) for w in weights if w not in stored]
        graph = helper.make_graph(
            list(nodes),
            "probe",
            [_value(*entry, open_dims=form == OPEN) for entry in inputs],
            [_value(r.name, r.elem_type, r.dims, open_dims=form == OPEN) for r in self.results],
            [numpy_helper.from_array(np.asarray(w.array(), order="C"), w.name) for w in stored],
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in sorted(self.opsets.items())]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of all that decides what a probe of this case runs, and of nothing else."""
        state = hashlib.sha256()
        for form in sorted(self.forms):
            state.update(form.encode())
            state.update(self.model(form, drawn_weights=False).SerializeToString(deterministic=True))
        drawn = [(w.name, w.dims, w.fill and w.fill.model_dump(), w.seed) for w in self.weights if w.value is None]
        operands = [(o.name, [str(d) for d in o.dims], o.fill.model_dump()) for o in self.operands]
        state.update(json.dumps([drawn, operands, dict(self.carried)], sort_keys=True).encode())
        return state.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Types and shapes, operands first, in the symbols q (rows) and n (keys); a * marks a constant."""
        tensors = [(o.name, o.elem_type, _text(o.dims)) for o in self.operands]
        tensors += [(w.name, w.elem_type, f"*{','.join(map(str, w.dims))}") for w in self.weights]
        order = list(dict.fromkeys(name for node in self.nodes for name in node.input))
        tensors = sorted((entry for entry in tensors if entry[0] in order), key=lambda entry: order.index(entry[0]))
        results = [(r.elem_type, _text(r.dims)) for r in self.results]
        types = [elem for _, elem, _ in tensors] + [elem for elem, _ in results]
        return {
            "dtypes": [TensorProto.DataType.Name(elem).lower() for elem in types],
            "shapes": {"inputs": [text for *_, text in tensors], "outputs": [text for _, text in results]},
        }


def _value(name: str, elem_type: int, dims: tuple[Size, ...], *, open_dims: bool) -> onnx.ValueInfoProto:
    known = [size.is_fixed and not open_dims for size in dims]
    shape = [size.fixed if known[axis] else f"{name}.{axis}" for axis, size in enumerate(dims)]
    return helper.make_tensor_value_info(name, elem_type, shape)


def _text(dims: tuple[Size, ...]) -> str:
    return ",".join(str(size) for size in dims)
