"""One call of a static graph: every input, output and cache at an address and in a shape that stay.

On CUDA it is what a captured graph replays, by the id of its run option; elsewhere it is the same call without capture.
ONNX Runtime runs the first call of an id several times. Nothing a call reads is changed by it but cache rows, which it
writes from its inputs alone: run again it gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qbpass.runtime.call_error import session_run


class StaticCall:
    """Small inputs are copied into the call's memory, logits (1, rows, vocabulary) out of it into the host's."""

    def __init__(
        self,
        session: Any,
        like: Mapping[str, np.ndarray],
        logits: tuple[str, np.ndarray],
        device: str,
        bind_caches: Callable[[Any], None],
    ):
        """like: arrays of the small inputs' shapes and types. logits: the output's name, and an array (rows,
        vocabulary) of its type. bind_caches: binds what is left.
        """
        import onnxruntime as ort

        self._session = session
        self.binding = session.io_binding()
        self._values = {
            name: ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, device, 0)
            for name, array in like.items()
        }
        name, rows = logits
        self._logits = ort.OrtValue.ortvalue_from_shape_and_type((1, *rows.shape), rows.dtype, device, 0)
        for source, value in self._values.items():
            self.binding.bind_ortvalue_input(source, value)
        self.binding.bind_ortvalue_output(name, self._logits)
        bind_caches(self.binding)
        self._options: Any = None

    def capture(self, graph_id: int) -> None:
        """Runs are named by that id from now on. CUDA alone."""
        import onnxruntime as ort

        self._options = ort.RunOptions()
        self._options.add_run_config_entry("gpu_graph_id", str(graph_id))

    def run(self, arrays: Mapping[str, np.ndarray], out: np.ndarray) -> None:
        """Every small input's values; the logits go to `out`, (rows, vocabulary). Raises CallError."""
        for name, value in self._values.items():
            value.update_inplace(np.ascontiguousarray(arrays[name]))
        session_run(self._session, self.binding, *([] if self._options is None else [self._options]))
        np.copyto(out, self._logits.numpy()[0])
