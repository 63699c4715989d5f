"""A session's call with everything bound beforehand: timing it times ONNX Runtime alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

ALIGNMENT = 64  # what ONNX Runtime's own allocator gives, and so what the product's KV buffers have


def aligned(array: np.ndarray) -> np.ndarray:
    """A contiguous copy at a cache line's start. numpy's own arrays begin anywhere: wide loads would straddle lines."""
    raw = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    placed = raw[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    placed[...] = array
    return placed


class BoundCall:
    """`feeds` bound by address, so that a prefix of a buffer costs nothing, and one output.

    Feeds that the session has no input for are left out. Raises KeyError for an input without a feed.
    """

    def __init__(self, session: Any, feeds: Mapping[str, np.ndarray], output: str, shape: tuple[int, ...]):
        self.session = session
        self.binding = session.io_binding()
        self._kept = dict(feeds)  # the binding holds addresses only
        for entry in session.get_inputs():
            array = self._kept[entry.name]
            if not array.flags["C_CONTIGUOUS"]:
                raise ValueError(f"{entry.name} is not contiguous: its address does not say where its rows are")
            self.binding.bind_input(entry.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        dtype = next(iter(feeds.values())).dtype
        self.output = aligned(np.zeros(shape, dtype))
        self.binding.bind_output(output, "cpu", 0, dtype, shape, self.output.ctypes.data)

    def __call__(self) -> np.ndarray:
        self.session.run_with_iobinding(self.binding)
        return self.output
