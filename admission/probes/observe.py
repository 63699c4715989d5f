"""Shapes and values of every tensor of a graph, seen in calls of known size rather than inferred.

The graph is run on the CPU provider with all its tensors as outputs: what it computes there differs in the last bits
from another provider, its shapes do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from qbpass.admission.calls.call import Call
from qbpass.admission.probes.feeds import longer
from qbpass.admission.probes.fills import Array
from qbpass.admission.probes.sizes import Size, fit_size
from qbpass.models.errors import ModelFileError
from qbpass.models.session import SessionSpec, one_line, open_session
from qbpass.models.weight_sources import WeightSources

#: Three determine a length that is a sum of rows and keys, the fourth shows whether it is one.
#: No number is 1, which broadcasts; no call is wider than the four rows a rewritten graph takes.
CALLS = (Call(2, 5), Call(3, 11), Call(4, 7), Call(3, 16))

SMALL = 4096  # elements of a tensor whose values are kept, where they are no floats or belong to no row


@dataclass(frozen=True)
class RunnableGraph:
    """A graph, where its weights lie, and what its inputs hold in a call."""

    name: str
    model: onnx.ModelProto
    weights: WeightSources
    feeds: Callable[[Call], Mapping[str, Array]]


@dataclass(frozen=True)
class Seen:
    """One tensor. dims: None where a length is no sum of rows and keys. values: those of each call, if kept."""

    elem_type: int
    dims: tuple[Size, ...] | None
    low: float = 0.0  # of the finite values
    high: float = 0.0
    deviation: float = 0.0  # of the values that mask nothing
    mask_value: float | None = None  # what stands where a row may not look, if anything does
    values: tuple[Array, ...] = ()
    affine: tuple[Size, ...] | None = None  # of kept whole numbers: each element as a sum of the call's rows and keys

    @property
    def constant(self) -> Array | None:
        """The value, where every call gave the same."""
        same = len({value.tobytes() for value in self.values}) == 1
        return self.values[0] if same and len({value.shape for value in self.values}) == 1 else None


def observe(graph: RunnableGraph, spec: SessionSpec) -> dict[str, Seen]:
    """Every tensor that the graph's own nodes make, and its inputs. Those inside control flow are not seen.

    Raises ModelFileError where the graph can't be run.
    """
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    declared = {value.name for value in model.graph.output}
    made = [name for node in model.graph.node for name in node.output if name and name not in declared]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    cpu = replace(spec, provider="cpu")
    session = open_session(model.SerializeToString(), cpu, weights=graph.weights)
    names = [entry.name for entry in session.get_outputs()]
    failure: ModelFileError | None = None
    for calls in zip(*(longer(call) for call in CALLS), strict=True):
        try:
            made = [_tensors(session, names, graph, call) for call in calls]
        except ModelFileError as error:
            failure = failure or error
            continue
        shown = {name: [tensors[name] for tensors in made] for name in made[0]}
        return {name: _seen(values, calls) for name, values in shown.items() if isinstance(values[0], np.ndarray)}
    assert failure is not None
    raise failure


def _tensors(session: Any, names: list[str], graph: RunnableGraph, call: Call) -> dict[str, Any]:
    feeds = dict(graph.feeds(call))
    try:
        return feeds | dict(zip(names, session.run(None, feeds), strict=True))
    except Exception as error:  # ONNX Runtime raises a family of private types
        raise ModelFileError(f"the {graph.name} graph can't be run ({one_line(error)}): export it again") from error


def _seen(values: list[Array], calls: Sequence[Call]) -> Seen:
    first = values[0]
    elem_type = helper.np_dtype_to_tensor_dtype(first.dtype)
    dims = _dims([value.shape for value in values], calls)
    is_float = first.dtype.kind == "f"
    bare = dims is not None and all(size.is_fixed for size in dims)
    keep = (bare or not is_float) and max(value.size for value in values) <= SMALL
    affine = _affine(values, calls) if keep and bare and first.dtype.kind in "iu" else None
    seen = Seen(elem_type, dims, values=tuple(values) if keep else (), affine=affine)
    if first.dtype.kind not in "fiu":
        return seen
    flat = np.concatenate([value.reshape(-1) for value in values]).astype(np.float64)
    return _measured(seen, flat, first.dtype) if flat.size else seen


def _measured(seen: Seen, flat: Array, dtype: np.dtype[Any]) -> Seen:
    mask_value = None
    if dtype.kind == "f":
        masked = flat <= _mask_threshold(dtype)
        if masked.any():
            mask_value = float(flat[masked].min())
        flat = flat[~masked]
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        return replace(seen, mask_value=mask_value)
    low, high, deviation = float(flat.min()), float(flat.max()), float(flat.std())
    return replace(seen, low=low, high=high, deviation=deviation, mask_value=mask_value)


def _mask_threshold(dtype: np.dtype[Any]) -> float:
    """Values below are masks': exporters write the type's lowest value, -inf, -1e9 or -10000."""
    return -9e3 if dtype == np.float16 else -9.9e3


def _affine(values: list[Array], calls: Sequence[Call]) -> tuple[Size, ...] | None:
    columns = np.stack([value.reshape(-1) for value in values]).T
    return _all([fit_size([int(v) for v in c], [(k.queries, k.extent) for k in calls]) for c in columns])


def _dims(shapes: list[tuple[int, ...]], calls: Sequence[Call]) -> tuple[Size, ...] | None:
    if len({len(shape) for shape in shapes}) != 1:
        return None
    sizes = [
        fit_size(lengths, [(call.queries, call.extent) for call in calls]) for lengths in zip(*shapes, strict=True)
    ]
    return _all(sizes)


def _all(sizes: list[Size | None]) -> tuple[Size, ...] | None:
    known = tuple(size for size in sizes if size is not None)
    return known if len(known) == len(sizes) else None
