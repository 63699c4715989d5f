"""A wide product is tried on its first columns, which hold what they hold in the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qbpass.models.session import SessionSpec, open_session
from qbpass.rewrites.row_repair import first_columns as module
from qbpass.rewrites.row_repair.first_columns import columns_left_out, first_columns

SPEC = SessionSpec(threads=1)
WIDTH, COLUMNS, BLOCK = 64, 96, 32


def product(optional: bool, flat: bool) -> onnx.ModelProto:
    """One MatMulNBits of 4 bits. optional: with zero points and a bias; flat: scales in one axis, as builders write."""
    random, blocks = np.random.default_rng(0), WIDTH // BLOCK
    scales = random.random((COLUMNS * blocks,) if flat else (COLUMNS, blocks), np.float32)
    stored = {"packed": random.integers(0, 256, (COLUMNS, blocks, BLOCK // 2)).astype(np.uint8), "scales": scales}
    inputs = ["x", "packed", "scales"]
    if optional:
        stored["zeros"] = random.integers(0, 256, (COLUMNS * 1,)).astype(np.uint8)
        stored["bias"] = random.random(COLUMNS, np.float32)
        inputs += ["zeros", "", "bias"]
    sizes = {"K": WIDTH, "N": COLUMNS, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
    graph = helper.make_graph(
        [helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **sizes)],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, None, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, None, COLUMNS])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_the_first_columns_are_the_whole_products_own(
    optional: bool, flat: bool, external: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WEIGHTS", 64 * WIDTH)
    path = tmp_path / "wide.onnx"
    options = {"save_as_external_data": True, "location": "wide.data", "size_threshold": 0} if external else {}
    onnx.save_model(product(optional, flat), path, **options)
    narrow = tmp_path / "narrow.onnx"
    cut = first_columns(onnx.load(path, load_external_data=False))
    narrow.write_bytes(cut.SerializeToString())
    rows = {"x": np.random.default_rng(1).standard_normal((1, 3, WIDTH), np.float32)}
    (whole,), (first,) = (open_session(file, SPEC).run(None, rows) for file in (path, narrow))
    assert columns_left_out(product(optional, flat).graph.node) == COLUMNS - 64
    assert first.tobytes() == np.ascontiguousarray(whole[..., :64]).tobytes()


def test_a_product_that_is_not_so_wide_is_left_as_it_is() -> None:
    model = product(optional=True, flat=True)
    assert first_columns(model) is model
    assert columns_left_out(model.graph.node) == 0


def test_only_a_product_alone_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WEIGHTS", 64 * WIDTH)
    model = product(optional=False, flat=True)
    model.graph.node.append(helper.make_node("Neg", ["y"], ["z"]))
    assert first_columns(model) is model
