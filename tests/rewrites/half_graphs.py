"""float16 graphs as users get them: the tiny float32 export converted, or given a float16 cache."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper
from onnxruntime.transformers.onnx_model import OnnxModel

from qbpass.models.export.names import MODEL_FILE


def converted(export: Path, folder: Path, *, keep_io_types: bool) -> Path:
    """The export in float16 by ONNX Runtime's own converter; keep_io_types: its inputs and outputs stay float32."""
    model = OnnxModel(onnx.load(export / MODEL_FILE))
    model.convert_float_to_float16(keep_io_types=keep_io_types, use_symbolic_shape_infer=False)
    model.topological_sort()
    onnx.save(model.model, folder / MODEL_FILE)
    return folder


def with_half_cache(export: Path, folder: Path, *, attended: bool) -> Path:
    """float32 products over a float16 cache. attended: attention reads the new rows rounded, as they are cached;
    otherwise they are rounded only where they are given out.
    """
    model = onnx.load(export / MODEL_FILE)
    graph = model.graph
    caches = [value for value in (*graph.input, *graph.output) if value.name.startswith(("past_", "present"))]
    for value in caches:
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    names = {value.name for value in caches}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.output[0] not in names:
            nodes.append(node)
            continue
        past, new = node.input
        present, whole = node.output[0], f"{node.output[0]}.whole"
        if attended:
            nodes += [cast(new, f"{new}.half", TensorProto.FLOAT16), join(past, f"{new}.half", present)]
            nodes.append(cast(present, whole, TensorProto.FLOAT))
        else:
            nodes += [cast(past, f"{past}.wide", TensorProto.FLOAT), join(f"{past}.wide", new, whole)]
            nodes.append(cast(whole, present, TensorProto.FLOAT16))
    for node in nodes:
        reads = [f"{name}.whole" if name in names and name.startswith("present") else name for name in node.input]
        if node.output[0] not in {f"{name}.whole" for name in names}:
            node.input[:] = reads
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, folder / MODEL_FILE)
    return folder


def cast(source: str, result: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [result], f"half_cache/{result}", to=kind)


def join(past: str, new: str, present: str) -> onnx.NodeProto:
    return helper.make_node("Concat", [past, new], [present], f"half_cache/{present}", axis=-2)
