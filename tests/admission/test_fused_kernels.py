"""What the readers say of heads, packing, scale and features is what ONNX Runtime computes.

These are claims about meaning, so a tolerance is right here: NumPy adds in another order than the kernels.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from fused_graphs import Fused, fused_decoder
from fused_reference import Array, attend
from onnx import helper

from qbpass.admission import admit
from qbpass.admission.calls.call import CALLS, Call
from qbpass.admission.dataflow import Flow
from qbpass.admission.facts import AttentionFacts
from qbpass.models.decoder import Decoder

ROTARY = {"cos_cache": (32, 8), "sin_cache": (32, 8)}
OPERATORS = {
    "gqa": Fused(),
    "gqa, packed": Fused(packed="qkv"),
    "gqa, other ratio": Fused(heads=6, kv_heads=3, head_dim=16),
    "gqa, scale": Fused(attributes={"scale": 0.7}),
    "gqa, rotary": Fused(packed="qkv", head_dim=16, extras=ROTARY, attributes={"do_rotary": 1}),
    "gqa, interleaved": Fused(head_dim=16, extras=ROTARY, attributes={"do_rotary": 1, "rotary_interleaved": 1}),
    "gqa, window": Fused(attributes={"local_window_size": 3}),
    "gqa, softcap": Fused(attributes={"softcap": 2.0}),
    "gqa, sink": Fused(extras={"head_sink": (4,)}),
    "gqa, smooth": Fused(attributes={"smooth_softmax": 1}),
    "gqa, mask": Fused(added="causal"),
    "mha": Fused("mha", attributes={"unidirectional": 1}),
    "mha, wide values": Fused("mha", value_dim=12, joined="nowhere", attributes={"unidirectional": 1}),
    "mha, joined outside": Fused("mha", joined="outside", added="causal", attributes={"scale": 0.3}),
    "onnx": Fused("onnx", added="causal"),
    "onnx, rank 3": Fused("onnx", rank=3, value_dim=12, attributes={"is_causal": 1}),
    "onnx, booleans": Fused("onnx", joined="outside", added="causal", boolean=True),
    "onnx, softcap": Fused("onnx", attributes={"is_causal": 1, "softcap": 2.0, "scale": 0.4}),
    "onnx, window": Fused("onnx", attributes={"is_causal": 1, "left_window_size": 2}),
    "onnx, window on both sides": Fused("onnx", attributes={"left_window_size": 2, "right_window_size": 0}),
    "ms": Fused("ms", attributes={"unidirectional": 1}),
    "ms, scale": Fused("ms", attributes={"unidirectional": 1, "scale": 0.2}),
    "ms, wide values": Fused(
        "ms", value_dim=12, joined="nowhere", attributes={"unidirectional": 1, "qkv_hidden_sizes": [32, 32, 48]}
    ),
}


def run(decoder: Decoder, facts: AttentionFacts, call: Call) -> dict[str, Array]:
    """Every tensor that the facts name, in one call on ONNX Runtime's CPU provider, as exported."""
    model, rng = onnx.ModelProto(), np.random.default_rng(1)
    model.CopyFrom(decoder.model)
    known = {value.name for value in (*model.graph.input, *model.graph.output)} | {
        tensor.name for tensor in model.graph.initializer
    }
    model.graph.output.extend(
        helper.make_tensor_value_info(name, 1 if facts.dtypes[name] == "float32" else 9, None)
        for name in facts.tensors.values()
        if name not in known and facts.dtypes[name] in ("float32", "bool")
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    sizes = {"queries": call.queries, "past": call.past, "past + queries": call.extent}
    feeds = {}
    for given in session.get_inputs():
        shape = [sizes.get(size, size) for size in given.shape]
        whole = given.name == "attention_mask"
        numbers = rng.standard_normal(shape).astype(np.float32)
        feeds[given.name] = numbers if "float" in given.type else (np.ones if whole else np.zeros)(shape, np.int64)
    feeds["input_ids"] = rng.integers(0, 16, (1, call.queries))
    names = [output.name for output in session.get_outputs()]
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return {**weights, **feeds, **dict(zip(names, session.run(names, feeds), strict=True))}


@pytest.mark.parametrize("name", OPERATORS)
def test_the_facts_of_an_operator_are_enough_to_compute_what_its_kernel_computes(name: str) -> None:
    decoder = fused_decoder(OPERATORS[name])
    (report,) = admit(decoder).sites
    facts = report.facts
    assert facts is not None
    flow = Flow.of(decoder)
    for call in (CALLS[0], Call(1, 6)):
        values = run(decoder, facts, call)
        known = {name: flow.trace(call).shape(name) for name in facts.tensors.values() if name in values}
        assert known == {name: values[name].shape for name in known}
        got = values[facts.tensors["output"]]
        got = got[0] if got.ndim == 3 else np.concatenate(list(got[0]), axis=-1)
        np.testing.assert_allclose(got, attend(facts, values), rtol=2e-5, atol=2e-5)


def test_a_wrong_head_count_is_told_apart() -> None:
    """The comparison above can fail: with another number of KV heads, or another order of packing, it does."""
    decoder = fused_decoder(Fused(packed="qkv"))
    (report,) = admit(decoder).sites
    facts = report.facts
    assert facts is not None
    values = run(decoder, facts, CALLS[0])
    got = values[facts.tensors["output"]][0]
    packed = values[facts.tensors["packed_qkv"]]
    turned = {**values, facts.tensors["packed_qkv"]: np.concatenate([packed[..., 16:], packed[..., :16]], axis=-1)}
    for other in (attend(replace(facts, scale=0.5), values), attend(facts, turned)):
        assert not np.allclose(got, other, rtol=1e-2, atol=1e-2)


def test_is_causal_over_keys_joined_outside_starts_at_the_first_key() -> None:
    """Why such a graph is refused with KEY_EXTENT: behind a past, a query does not even read its own key."""
    decoder = fused_decoder(Fused("onnx", joined="outside", attributes={"is_causal": 1}))
    (report,) = admit(decoder).sites
    facts = report.facts
    assert facts is not None
    values = run(decoder, facts, CALLS[0])
    from_first = np.where(np.tri(CALLS[0].queries, CALLS[0].extent) > 0, 0, -np.inf)[None, None]
    as_mask = replace(facts, features={}, tensors={**facts.tensors, "mask": "from_first"})
    got = np.concatenate(list(values[facts.tensors["output"]][0]), axis=-1)
    np.testing.assert_allclose(got, attend(as_mask, {**values, "from_first": from_first}), rtol=2e-5, atol=2e-5)
    assert "KEY_EXTENT" in [diagnostic.code for diagnostic in report.diagnostics]
