"""The form of the rules that say what an operator gives out."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import TensorProto

from qbpass.admission.calls.call_inputs import CallShape, TensorInCall

Rule = Callable[[onnx.NodeProto, list[TensorInCall | None]], list[TensorInCall]]


def typed(like: TensorInCall | None, shape: CallShape | None, elem_type: int | None = None) -> TensorInCall:
    """A result of that shape, of the type of `like` where none is given."""
    known = like.elem_type if like is not None else TensorProto.UNDEFINED
    return TensorInCall(known if elem_type is None else elem_type, shape)


def shape_of(tensor: TensorInCall | None) -> CallShape | None:
    return None if tensor is None else tensor.shape
