"""Random operands of a fused operator for every position, cut to the rows and keys of a call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qbpass.admission.calls.call import Call
from qbpass.admission.dataflow import Flow
from qbpass.admission.fused_site import FusedSite
from qbpass.models.decoder import Decoder
from qbpass.rewrites.chains.alone import fused_node
from qbpass.rewrites.kv_cache import numpy_dtype

#: A call by which the sizes of operands other than rows and keys are read off the graph.
_SIZED = Call(3, 5)


@dataclass(frozen=True)
class FusedOperands:
    """by_place: operand place -> (name, an array that reaches to the last position)."""

    site: FusedSite
    by_place: dict[int, tuple[str, np.ndarray]]

    def of_call(self, past: int, queries: int) -> dict[str, np.ndarray]:
        """Rows past .. past + queries - 1, and columns of every key up to the last row's own."""
        feeds = {}
        for place, (name, array) in self.by_place.items():
            cut = [slice(None)] * array.ndim
            cut[self.site.row_axes[place]] = slice(past, past + queries)
            if place in self.site.key_axes:
                cut[self.site.key_axes[place]] = slice(0, past + queries)
            feeds[name] = np.ascontiguousarray(array[tuple(cut)])
        return feeds


def random_fused_operands(frozen: Decoder, site: FusedSite, reach: int, seed: int) -> FusedOperands:
    """Normal numbers for every operand with rows; positions count up. `reach` rows, and as many keys."""
    rng = np.random.default_rng(seed)
    node, trace = fused_node(frozen.model, site), Flow.of(frozen).trace(_SIZED)
    found: dict[int, tuple[str, np.ndarray]] = {}
    for place, axis in sorted(site.row_axes.items()):
        name = node.input[place]
        shape = [1 if size is None else size for size in trace.shape(name) or ()]
        shape[axis] = reach
        if place in site.key_axes:
            shape[site.key_axes[place]] = reach
        if trace.elem_type(name) in (6, 7):
            array = np.broadcast_to(np.arange(reach), shape).astype(
                np.int64 if trace.elem_type(name) == 7 else np.int32
            )
        else:
            array = rng.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(site.elem_type))
        found[place] = (name, array)
    return FusedOperands(site, found)
