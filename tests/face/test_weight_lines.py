"""What a rewrite says of the weights: where they are read, what is held, and why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import ModelProto, numpy_helper

from qbpass.rewrites.bundle import Bundle
from qbpass.weight_lines import weight_lines


def test_weights_inside_the_models_graph_are_said_to_be_copied(tiny_bundle: Bundle) -> None:
    model = ModelProto()
    assert len(weight_lines(tiny_bundle, replace(tiny_bundle.reference, model=model))) == 1
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(2**20, np.float32), "w"))
    lines = weight_lines(tiny_bundle, replace(tiny_bundle.reference, model=model))
    assert lines[-1] == (
        "reference.onnx holds 4.0 MiB of weights inside the graph, so they are copied; of a model saved with external "
        "data they are not"
    )
