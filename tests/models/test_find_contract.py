"""A decoder's contract is found by dataflow, and what is no decoder is told so in one line."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tiny_graphs import FLOAT, HEAD_DIM, INT64, KV_HEADS, VOCABULARY, Builder, as_model, renamed, tiny_decoder, value

from qbpass.models.contract import DecoderContract, KVPair
from qbpass.models.errors import ContractError
from qbpass.models.find_contract import find_contract

FORMS = ["decomposed", "gqa", "onnx", "onnx_concat"]


def expected(layers: int, new: dict[str, str] | None = None, positions: bool = True) -> DecoderContract:
    def name(old: str) -> str:
        return new[old] if new else old

    return DecoderContract(
        input_ids=name("input_ids"),
        attention_mask=name("attention_mask"),
        position_ids=name("position_ids") if positions else None,
        logits=name("logits"),
        kv=tuple(
            KVPair(
                layer,
                *(name(f"{side}.{layer}.{kind}") for side in ("past", "present") for kind in ("key", "value")),
                kv_heads=KV_HEADS,
                key_dim=HEAD_DIM,
                value_dim=HEAD_DIM,
                elem_type=TensorProto.FLOAT,
            )
            for layer in range(layers)
        ),
        vocab_size=VOCABULARY,
    )


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_attention_gives_the_same_contract(form: str) -> None:
    assert find_contract(tiny_decoder(3, form)) == expected(3)


@pytest.mark.parametrize("form", FORMS)
def test_names_and_their_order_say_nothing(form: str) -> None:
    model, new = renamed(tiny_decoder(3, form))
    assert find_contract(model) == expected(3, new)


def test_a_head_dimension_left_symbolic_is_read_off_the_output_projection() -> None:
    model = tiny_decoder(2, "gqa")
    for v in model.graph.input:
        if v.name.startswith("past."):
            v.type.tensor_type.shape.dim[3].dim_param = "head_dim"
    assert find_contract(model) == expected(2)


def test_a_present_behind_an_identity_is_found() -> None:
    model = tiny_decoder(1)
    for node in model.graph.node:
        node.output[:] = [name.replace("present.0.key", "inner") for name in node.output]
        node.input[:] = [name.replace("present.0.key", "inner") for name in node.input]
    model.graph.node.append(onnx.helper.make_node("Identity", ["inner"], ["present.0.key"]))
    assert find_contract(model) == expected(1)


def test_a_position_table_is_not_taken_for_the_vocabulary() -> None:
    model = tiny_decoder(1)
    table = np.zeros((4 * VOCABULARY, HEAD_DIM), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    for node in model.graph.node:
        if node.op_type == "Cos":
            node.CopyFrom(onnx.helper.make_node("Gather", ["table", "position_ids"], list(node.output)))
    assert find_contract(model) == expected(1)


def test_a_decoder_without_positions_has_none() -> None:
    model = tiny_decoder(1, "gqa")
    kept = [v for v in model.graph.input if v.name != "position_ids"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((1, 1), np.int64), "position_ids"))
    assert find_contract(model) == expected(1, positions=False)


@pytest.mark.parametrize("way", ["gather", "slice", "dim"])
def test_logits_of_the_last_position_only_are_refused(way: str) -> None:
    with pytest.raises(ContractError, match="logits for the last position only") as caught:
        find_contract(tiny_decoder(2, last_only=way))
    assert "\n" not in str(caught.value)


def test_a_slice_that_takes_every_position_is_no_reason_to_refuse() -> None:
    model = tiny_decoder(1, last_only="slice")
    for node in model.graph.node:
        if node.op_type == "Slice":
            node.input[1] = "zero"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zero"))
    kept = [v for v in model.graph.input if v.name != "keep"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.node.remove(next(node for node in model.graph.node if node.op_type == "Neg"))
    assert find_contract(model) == expected(1)


def test_a_model_without_a_cache_is_refused() -> None:
    b = Builder()
    x = b.op("Gather", b.weight("embedding", VOCABULARY, 16), "ids")
    b.op("MatMul", x, b.weight("head", 16, VOCABULARY), out="logits")
    model = as_model(b, [value("ids", INT64, 1, "q")], [value("logits", FLOAT, 1, "q", VOCABULARY)])
    with pytest.raises(ContractError, match="export it with past_key_values inputs"):
        find_contract(model)


def test_a_merged_decoder_is_told_from_a_model_without_a_cache() -> None:
    branch = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["ids"], ["inner"])], "branch", [], [value("inner", INT64, 1, "q")]
    )
    b = Builder()
    b.op("If", "flag", out="logits", then_branch=branch, else_branch=branch)
    inputs = [value("ids", INT64, 1, "q"), value("flag", TensorProto.BOOL, 1)]
    with pytest.raises(ContractError, match="merged decoder"):
        find_contract(as_model(b, inputs, [value("logits", INT64, 1, "q")]))


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (value("encoder_states", FLOAT, 1, "s", 32), "encoder-decoder"),
        (value("cross.key", FLOAT, 1, KV_HEADS, "s", HEAD_DIM), "encoder-decoder"),
        (value("segments", INT64, 1, "q"), "does not know what to feed it"),
    ],
)
def test_an_input_of_no_known_kind_is_refused(extra: onnx.ValueInfoProto, says: str) -> None:
    model = tiny_decoder(1)
    model.graph.input.append(extra)
    with pytest.raises(ContractError, match=says) as caught:
        find_contract(model)
    assert extra.name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "dim", "size", "says"),
    [
        ("input_ids", 0, 4, "fixed batch of 4"),
        ("input_ids", 1, 1, r"exactly 1 token\(s\) a call"),
        ("past.0.value", 2, 128, "fixed past of 128"),
    ],
)
def test_fixed_sizes_that_decoding_outgrows_are_refused(name: str, dim: int, size: int, says: str) -> None:
    model = tiny_decoder(1)
    next(v for v in model.graph.input if v.name == name).type.tensor_type.shape.dim[dim].dim_value = size
    with pytest.raises(ContractError, match=says):
        find_contract(model)


def test_a_model_without_a_head_is_refused() -> None:
    model = tiny_decoder(1)
    next(v for v in model.graph.output if v.name == "logits").type.tensor_type.elem_type = INT64
    with pytest.raises(ContractError, match="no output holds logits"):
        find_contract(model)


def test_a_cache_that_no_attention_reads_is_refused() -> None:
    model = tiny_decoder(1)
    model.graph.input.append(value("stray", FLOAT, 1, KV_HEADS, "past", HEAD_DIM))
    model.graph.node.append(onnx.helper.make_node("Concat", ["stray", "present.0.key"], ["grown"], axis=2))
    model.graph.output.append(value("grown", FLOAT, 1, KV_HEADS, "m", HEAD_DIM))
    with pytest.raises(ContractError, match="'stray' is appended to but reaches no attention"):
        find_contract(model)


def test_a_cache_with_keys_and_values_in_one_tensor_is_refused() -> None:
    model = tiny_decoder(1, "gqa")
    past = next(v for v in model.graph.input if v.name == "past.0.key")
    past.type.tensor_type.shape.dim.add(dim_value=2)
    with pytest.raises(ContractError, match=r"'past\.0\.key' has 5 axes, not 4"):
        find_contract(model)
