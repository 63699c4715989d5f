"""Binding memory to a graph's inputs and outputs by address, at the least cost a call.

A decoder whose cache is bound by prefix has up to six tensors a layer whose shapes grow with every token, so all of
them are bound anew in every call. Through `IOBinding.bind_input` that took 0.6 ms for 30 layers, most of it Python: a
device object a tensor, a numpy type looked up, bookkeeping for WebGPU. What those methods call in the end takes 0.2 ms.
The two names used here are not public in ONNX Runtime; tests/runtime/test_addresses.py fails where a version has
others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

Binder = Callable[[str, Any, int, tuple[int, ...], int], None]

INT64 = int(onnx.TensorProto.INT64)


def elem_type(dtype: np.dtype[Any]) -> int:
    """ONNX's number of a numpy type."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))


def ort_device(name: str) -> Any:
    """ONNX Runtime's own object for device 0 of a kind: cpu, cuda."""
    import onnxruntime as ort

    return ort.OrtDevice.make(name, 0)._get_c_device()


def raw_binders(binding: Any) -> tuple[Binder, Binder]:
    """(bind_input, bind_output) of an IOBinding: (name, device, elem, shape, address).

    device: `ort_device`'s; elem: ONNX's number of the element type; shape: of contiguous memory at `address`, which is
    the caller's and must outlive every run of the binding. Raises TypeError for arguments of other types.
    """
    raw = binding._iobinding
    return raw.bind_input, raw.bind_output
