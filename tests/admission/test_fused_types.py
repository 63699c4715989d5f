"""The sizes of what com.microsoft's fused operators give out are those that ONNX Runtime gives out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from qbpass.admission.calls.call_inputs import TensorInCall
from qbpass.admission.calls.node_types import output_types

FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
Shape = tuple[int, ...]

# operator -> (attributes, operands by number: a shape, or whole numbers; results)
CASES: dict[str, tuple[str, dict[str, Any], dict[int, Shape | list[int] | int], int]] = {
    "grouped": (
        "GroupQueryAttention",
        {"num_heads": 4, "kv_num_heads": 2},
        {0: (1, 3, 32), 1: (1, 3, 16), 2: (1, 3, 16), 3: (1, 2, 5, 8), 4: (1, 2, 5, 8), 5: [7], 6: 8},
        3,
    ),
    "grouped, packed": (
        "GroupQueryAttention",
        {"num_heads": 4, "kv_num_heads": 2},
        {0: (1, 3, 64), 3: (1, 2, 5, 8), 4: (1, 2, 5, 8), 5: [7], 6: 8},
        3,
    ),
    "grouped, cache as long as its window": (
        "GroupQueryAttention",
        {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 6, "sliding_window_cache": 1},
        {0: (1, 3, 64), 3: (1, 2, 6, 8), 4: (1, 2, 6, 8), 5: [8], 6: 9},
        3,
    ),
    "multi-head": (
        "MultiHeadAttention",
        {"num_heads": 4, "unidirectional": 1},
        {0: (1, 3, 32), 1: (1, 3, 32), 2: (1, 3, 32), 6: (1, 4, 5, 8), 7: (1, 4, 5, 8)},
        3,
    ),
    "multi-head, another stream": (
        "MultiHeadAttention",
        {"num_heads": 4},
        {0: (1, 3, 32), 1: (1, 4, 9, 8), 2: (1, 4, 9, 8)},
        1,
    ),
    "multi-head, no past": (
        "MultiHeadAttention",
        {"num_heads": 4},
        {0: (1, 3, 32), 1: (1, 3, 32), 2: (1, 3, 32)},
        3,
    ),
    "multi-head, wide values": (
        "MultiHeadAttention",
        {"num_heads": 4},
        {0: (1, 3, 32), 1: (1, 9, 32), 2: (1, 9, 48)},
        1,
    ),
    "multi-head, one row": (
        "DecoderMaskedMultiHeadAttention",
        {"num_heads": 4, "past_present_share_buffer": 1},
        {0: (1, 1, 32), 1: (1, 1, 32), 2: (1, 1, 32), 5: (1, 4, 9, 8), 6: (1, 4, 9, 8), 7: [5]},
        3,
    ),
    "projecting": (
        "Attention",
        {"num_heads": 4, "unidirectional": 1},
        {0: (1, 3, 24), 1: (24, 96), 2: (96,), 4: (2, 1, 4, 5, 8)},
        2,
    ),
    "projecting, wide values": (
        "Attention",
        {"num_heads": 4, "qkv_hidden_sizes": [32, 32, 48]},
        {0: (1, 3, 24), 1: (24, 112), 2: (112,)},
        1,
    ),
    "linear": (
        "LinearAttention",
        {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "linear"},
        {0: (1, 3, 32), 1: (1, 3, 16), 2: (1, 3, 10), 3: (1, 2, 8, 5)},
        2,
    ),
    "convolution": (
        "CausalConvWithState",
        {"activation": "silu"},
        {0: (1, 6, 3), 1: (6, 1, 4), 3: (1, 6, 3)},
        2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_and_types_are_those_that_onnxruntime_gives_out(name: str) -> None:
    operator, attributes, operands, results = CASES[name]
    rng = np.random.default_rng(0)
    feeds: dict[str, np.ndarray[Any, Any]] = {
        f"i{number}": rng.standard_normal(size).astype(np.float32)
        if isinstance(size, tuple)
        else np.array(size, np.int32)
        for number, size in operands.items()
    }
    names = [f"i{number}" if number in operands else "" for number in range(max(operands) + 1)]
    outputs = [f"o{number}" for number in range(results)]
    node = helper.make_node(operator, names, outputs, domain="com.microsoft", **attributes)
    kinds = {given: INT32 if value.dtype == np.int32 else FLOAT for given, value in feeds.items()}
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(given, kinds[given], feeds[given].shape) for given in feeds],
        [helper.make_tensor_value_info(output, FLOAT, None) for output in outputs],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    known = {given: TensorInCall(kinds[given], feeds[given].shape) for given in feeds}
    found = output_types(node, known, {"": 18, "com.microsoft": 1})
    made = session.run(outputs, feeds)
    assert [entry.shape for entry in found] == [value.shape for value in made]
    assert [entry.elem_type for entry in found] == [FLOAT] * results


@pytest.mark.parametrize(
    ("operator", "query"), [("MultiHeadAttention", (1, 3, 4, 3, 8)), ("DecoderMaskedMultiHeadAttention", (1, 3, 96))]
)
def test_what_is_packed_is_a_third_of_its_operand(operator: str, query: Shape) -> None:
    """By the operators' schemas: the CPU provider runs neither."""
    node = helper.make_node(operator, ["q"], ["o", "k", "v"], domain="com.microsoft", num_heads=4)
    found = output_types(node, {"q": TensorInCall(FLOAT, query)}, {"com.microsoft": 1})
    assert [entry.shape for entry in found] == [(1, 3, 32), (1, 4, 3, 8), (1, 4, 3, 8)]


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_node_has_unknown_sizes(name: str) -> None:
    operator, attributes, operands, results = CASES[name]
    outputs = [f"o{number}" for number in range(results)]
    names = [f"i{number}" if number in operands else "" for number in range(max(operands) + 1)]
    broken = dict.fromkeys(attributes, "damaged")
    node = helper.make_node(operator, names, outputs, domain="com.microsoft", **broken)
    known = {f"i{number}": TensorInCall(FLOAT, (1,)) for number in operands}
    assert len(output_types(node, known, {"com.microsoft": 1})) == results
    assert len(output_types(node, {}, {"com.microsoft": 1})) == results
