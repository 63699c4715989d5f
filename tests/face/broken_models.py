"""Models with one thing wrong, made from a healthy export's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def not_onnx(folder: Path) -> None:
    (folder / "model.onnx").write_text("this is a text file\n" * 50)


def truncated_graph(folder: Path) -> None:
    data = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(data[: len(data) // 2])


def empty_graph(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"")


def missing_weights(folder: Path) -> None:
    (folder / "model.onnx.data").unlink()


def truncated_weights(folder: Path) -> None:
    data = (folder / "model.onnx.data").read_bytes()
    (folder / "model.onnx.data").write_bytes(data[: len(data) // 2])


def escaping_weights(folder: Path) -> None:
    """The weights exist, outside the model's folder."""
    shutil.move(folder / "model.onnx.data", folder.parent / "elsewhere.data")
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../elsewhere.data"
    onnx.save(model, folder / "model.onnx")


def no_kv_inputs(folder: Path) -> None:
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "q"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "q", 7])
    table = numpy_helper.from_array(np.zeros((7, 7), np.float32), "table")
    gather = helper.make_node("Gather", ["table", "input_ids"], ["logits"])
    graph = helper.make_graph([gather], "g", [ids], [logits], [table])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), folder / "model.onnx")


def last_token_logits(folder: Path) -> None:
    """Only the last position's logits come out, as exports for plain generation have it."""
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    graph = model.graph
    producer = next(node for node in graph.node if "logits" in node.output)
    hidden = producer.input[0]
    for name, value in (("last", -1), ("end", 2**31), ("axis", 1)):
        graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), name))
    cut = helper.make_node("Slice", [hidden, "last", "end", "axis"], ["last_hidden"])
    producer.input[0] = "last_hidden"
    graph.node.insert(list(graph.node).index(producer), cut)
    onnx.save(model, folder / "model.onnx")


def nan_weights(folder: Path) -> None:
    """Every weight is NaN; the graph is healthy."""
    data = folder / "model.onnx.data"
    data.write_bytes(np.full(data.stat().st_size // 4, np.nan, np.float32).tobytes())


def capped_scores(folder: Path) -> None:
    """Layer 0's scores go through Tanh: a decoder that runs, with an attention that is not admitted."""
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    node = helper.make_node("Tanh", [softmax.input[0]], ["capped"])
    softmax.input[0] = "capped"
    model.graph.node.insert(list(model.graph.node).index(softmax), node)
    onnx.save(model, folder / "model.onnx")
