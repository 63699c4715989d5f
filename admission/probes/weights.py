"""Constants of a small model: the user's own where they are small, drawn from a seed where they are not."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qbpass.admission.probes.case import Weight
from qbpass.admission.probes.fills import Fill
from qbpass.models.external_data import external_entry
from qbpass.models.weight_sources import WeightSources

#: A constant up to this size is the model's own and goes into a witness as it is.
OWN_BYTES = 4 * 2**20
#: One above this is not drawn: it would take this much memory several times over.
MOST_BYTES = 2**30


def weight_bytes(tensor: TensorProto) -> int:
    itemsize = int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    return int(math.prod(tensor.dims)) * itemsize


def read_weight(tensor: TensorProto, name: str, sources: WeightSources, seed: int) -> Weight:
    """The constant under another name. Large ones keep their type and shape alone."""
    dims = tuple(tensor.dims)
    if weight_bytes(tensor) <= OWN_BYTES:
        return Weight(name, tensor.data_type, dims, value=_read(tensor, sources))
    return Weight(name, tensor.data_type, dims, fill=_drawn(tensor), seed=seed)


def _read(tensor: TensorProto, sources: WeightSources) -> np.ndarray:
    if tensor.data_location != TensorProto.EXTERNAL:
        return np.asarray(numpy_helper.to_array(tensor))
    location, offset, length = external_entry(tensor)
    with sources.file(location, tensor.name).open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    inline = onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=data)
    return np.asarray(numpy_helper.to_array(inline))


def _drawn(tensor: TensorProto) -> Fill:
    """Of a size that keeps products near 1; every value of an integer type."""
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return Fill(kind="integers", low=float(limits.min), high=float(limits.max))
    if dtype.kind == "b":
        return Fill(kind="integers", low=0.0, high=1.0)
    return Fill(kind="normal", scale=1 / math.sqrt(max(tensor.dims[0], 1)))
