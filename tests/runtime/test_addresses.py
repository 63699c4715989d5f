"""Memory bound by address is what the graph reads and writes: as through ONNX Runtime's own IOBinding."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from decoder_blocks import SPEC
from onnx import TensorProto, helper

from qbpass.models.session import open_session
from qbpass.rewrites.manifest import Interface
from qbpass.runtime.addresses import elem_type, ort_device, raw_binders
from qbpass.runtime.feeds import Feeds


def doubling(elem: int) -> Any:
    values = [helper.make_tensor_value_info(name, elem, ["rows", 2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doubling", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return open_session(model.SerializeToString(), SPEC)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
def test_a_prefix_bound_by_address_is_read_and_written_where_it_lies(dtype: type[np.generic]) -> None:
    kind = np.dtype(dtype)
    session, device = doubling(elem_type(kind)), ort_device("cpu")
    memory, results = np.arange(12, dtype=kind).reshape(6, 2), np.zeros((6, 2), kind)
    binding = session.io_binding()
    for rows in (4, 2, 6):  # bound again with another shape, as every call does
        results[:] = 0
        bind_input, bind_output = raw_binders(binding)
        bind_input("x", device, elem_type(kind), (rows, 2), memory.ctypes.data)
        bind_output("y", device, elem_type(kind), (rows, 2), results.ctypes.data)
        session.run_with_iobinding(binding)
        assert results[:rows].tobytes() == (memory[:rows] + memory[:rows]).tobytes()
        assert not results[rows:].any()


def test_a_name_that_the_graph_does_not_have_is_refused() -> None:
    session = doubling(TensorProto.FLOAT)
    bind_input, _ = raw_binders(session.io_binding())
    with pytest.raises(Exception, match="z"):
        bind_input("z", ort_device("cpu"), elem_type(np.dtype(np.float32)), (1, 2), np.zeros(2, np.float32).ctypes.data)


def echoing(interface: Interface) -> Any:
    """A graph that gives back the mask and the positions that it is fed."""
    nodes, inputs, outputs = [], [], []
    for name in (interface.input_ids, interface.attention_mask, interface.position_ids):
        assert name is not None
        inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, [1, f"of_{name}"]))
        outputs.append(helper.make_tensor_value_info(f"{name}_out", TensorProto.INT64, [1, f"of_{name}"]))
        nodes.append(helper.make_node("Identity", [name], [f"{name}_out"]))
    graph = helper.make_graph(nodes, "echo", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return open_session(model.SerializeToString(), SPEC)


def test_feeds_are_the_tokens_a_mask_of_ones_and_positions_that_count_up_from_the_past() -> None:
    interface = Interface(
        input_ids="ids", attention_mask="mask", position_ids="at", logits="logits", vocab_size=9, layers=()
    )
    session, feeds = echoing(interface), Feeds(interface)
    feeds.reserve(16)
    binding = session.io_binding()
    for tokens, past in (([5, 6, 7, 8], 0), ([1], 4), ([2, 3], 14)):
        feeds.bind(binding, tokens, past, None, None)
        for name in ("ids_out", "mask_out", "at_out"):
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        ids, mask, at = (value.numpy().tolist() for value in binding.get_outputs())
        assert ids == [tokens]
        assert mask == [[1] * (past + len(tokens))]
        assert at == [list(range(past, past + len(tokens)))]


def test_feeds_are_not_bound_behind_their_memory() -> None:
    interface = Interface(
        input_ids="ids", attention_mask="mask", position_ids="at", logits="logits", vocab_size=9, layers=()
    )
    feeds = Feeds(interface)
    feeds.reserve(4)
    with pytest.raises(ValueError, match="5 rows asked of feeds for 4"):
        feeds.bind(echoing(interface).io_binding(), [1, 2], 3, None, None)
