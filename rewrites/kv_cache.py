"""The KV cache: updated in place, read at its exact extent, rolled back by moving a counter.

The export concatenates: present (1, Hkv, n, d) = Concat(past, new), a copy of the whole past in every call. Here a
layer's cache is one buffer of `capacity` rows, row-major by position, and a call is bound to its first n rows: (n, Hkv,
d) is contiguous, so the exact extent is a shape, not a copy. ScatterND writes the q new rows into rows past .. n - 1 of
the buffer it read (input and output bound to the same memory: ONNX Runtime's ScatterND copies only where they differ).
Readers take the scatter's output, never its input, so the data dependency orders write before read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from qbpass.admission.site import STANDARD_AXES, AttentionSite
from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.call_dims import CallDims
from qbpass.rewrites.plan import Clip


def cache_name(layer: int, part: str) -> str:
    """Graph input of a layer's cache, `part` key | value: (n, Hkv, d), its last q rows not yet written."""
    return f"cache.{layer}.{part}"


def updated_name(layer: int, part: str) -> str:
    """Graph output: the same memory with this call's rows written."""
    return f"cache_out.{layer}.{part}"


def segment_name(layer: int, segment: int, part: str = "value") -> str:
    """Graph input: the first n_s rows of the layer's value or key cache, the same memory once more."""
    return f"cache.{layer}.{part}.segment{segment}"


@dataclass
class CacheTensors:
    """One site's cache in the rewritten graph."""

    key_in: Any
    value_in: Any
    segments_in: list[Any]  # of values
    key_segments_in: list[Any]  # none where no row's keys are clipped
    key: Any = None  # (n, Hkv, d), written
    value: Any = None  # (n, Hkv, dv), written


def declare_cache(site: AttentionSite, segments: int, clip: Clip) -> CacheTensors:
    """The site's new graph inputs and outputs."""

    def key(name: str, rows: str) -> gs.Variable:
        return gs.Variable(name, dtype=numpy_dtype(site.elem_type), shape=[rows, site.kv_heads, site.head_dim])

    def value(name: str, rows: str) -> gs.Variable:
        return gs.Variable(name, dtype=numpy_dtype(site.value_type), shape=[rows, site.kv_heads, site.value_dim])

    layer = site.layer
    return CacheTensors(
        key_in=key(cache_name(layer, "key"), "n"),
        value_in=value(cache_name(layer, "value"), "n"),
        segments_in=[value(segment_name(layer, s), f"n_{s}") for s in range(segments - 1)],
        key_segments_in=[key(segment_name(layer, s, "key"), f"n_{s}") for s in range(segments - 1) if clip == "keys"],
        key=key(updated_name(layer, "key"), "n"),
        value=value(updated_name(layer, "value"), "n"),
    )


def emit_update(
    builder: NodeBuilder, site: AttentionSite, cache: CacheTensors, new: dict[str, Any], dims: CallDims
) -> None:
    """Write the call's rows: new["key"], new["value"] (1, Hkv, q, d) go to rows past .. n - 1."""
    for part, before, after in (("key", cache.key_in, cache.key), ("value", cache.value_in, cache.value)):
        rows = _rows(builder, new[part], after.shape[1:], part)
        builder.nodes.append(
            gs.Node("ScatterND", f"{builder.scope}/update_{part}", inputs=[before, dims.slots, rows], outputs=[after])
        )


def in_standard_order(builder: NodeBuilder, new: Any, axes: tuple[int, ...], part: str) -> Any:
    """(1, Hkv, q, d) of rows whose axis i is axis axes[i] of that."""
    if axes == STANDARD_AXES:
        return new
    perm = [axes.index(axis) for axis in STANDARD_AXES]
    return builder.node("Transpose", [new], f"{part}/in_order", perm=perm, dtype=new.dtype)


def _rows(builder: NodeBuilder, new: Any, width: list[int], part: str) -> Any:
    """(1, Hkv, q, d) -> (q, Hkv, d). A transpose that only made the head axis outer is undone by skipping it."""
    producer = new.inputs[0] if new.inputs else None
    if producer is not None and producer.op == "Transpose" and list(producer.attrs.get("perm", [])) == [0, 2, 1, 3]:
        by_row = producer.inputs[0]
    else:
        by_row = builder.node("Transpose", [new], f"{part}/by_row", perm=[0, 2, 1, 3], dtype=new.dtype)
    return builder.reshape(by_row, builder.ints(-1, *width), f"{part}/rows")


def numpy_dtype(elem_type: int) -> np.dtype[Any]:
    """The numpy dtype of an onnx element type."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
