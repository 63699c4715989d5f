"""Is there a GPU that sessions run on? A wheel with the provider is not enough: without a GPU it makes CPU sessions."""

from __future__ import annotations

from functools import cache

from onnx import TensorProto, helper

from qbpass.models.errors import QbpassError
from qbpass.models.session import SessionSpec, open_session


@cache
def has_gpu() -> bool:
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "neg", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    try:
        open_session(model.SerializeToString(), SessionSpec("cuda", threads=1))
    except QbpassError:
        return False
    return True
