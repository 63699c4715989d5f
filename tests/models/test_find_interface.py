"""Every form of cache is found by dataflow and named, whether qbpass can run it or not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from cache_graphs import AFTER, CACHE, PRESENT, append, attend, decoder
from tiny_graphs import tiny_decoder

from qbpass.models.contract import CachePair, KVPair
from qbpass.models.errors import ContractError
from qbpass.models.find_interface import find_interface
from qbpass.models.interface import Interface
from qbpass.models.session import SessionSpec, open_session

FLOAT = 1
ATTEND = attend("present_k", "present_v")
SPLIT_O = """
    o_apart = Reshape (o_flat, by_head)
    o = Transpose <perm = [0, 2, 1, 3]> (o_apart)
"""
BUFFER = CACHE.replace(",p,", ",64,")
FILLED = PRESENT.replace(",n,", ",64,")


def codes(interface: Interface) -> list[str]:
    return [problem.code for problem in interface.problems]


def only_pair(interface: Interface) -> CachePair:
    assert len(interface.kv) == 1
    return interface.kv[0]


def names(pair: CachePair) -> tuple[str | None, ...]:
    return pair.past_key, pair.past_value, pair.present_key, pair.present_value


USUAL = ("past_k", "past_v", "present_k", "present_v")

COMPLETE = {
    "concatenated": append() + ATTEND,
    "keys first in their product": append()
    + """
    qt = Transpose <perm = [0, 1, 3, 2]> (q)
    by_key = MatMul (present_k, qt)
    scores = Transpose <perm = [0, 1, 3, 2]> (by_key)
    p = Softmax <axis = -1> (scores)
    o = MatMul (p, present_v)
    """,
    "softmax spelled out": append()
    + """
    kt = Transpose <perm = [0, 1, 3, 2]> (present_k)
    scores = MatMul (q, kt)
    e = Exp (scores)
    total = ReduceSum (e, last)
    p = Div (e, total)
    o = MatMul (p, present_v)
    """,
    "probabilities guarded against NaN": append()
    + """
    kt = Transpose <perm = [0, 1, 3, 2]> (present_k)
    scores = MatMul (q, kt)
    p = Softmax <axis = -1> (scores)
    isnan = IsNaN (p)
    guarded = Where (isnan, zero, p)
    o = MatMul (guarded, present_v)
    """,
    "probabilities scaled": append()
    + """
    kt = Transpose <perm = [0, 1, 3, 2]> (present_k)
    scores = MatMul (q, kt)
    p = Softmax <axis = -1> (scores)
    scaled = Mul (p, step)
    o = MatMul (scaled, present_v)
    """,
    "heads unfolded around the concatenation": """
    folded_k = Reshape (past_k, fold)
    folded_v = Reshape (past_v, fold)
    new_k = Reshape (k, fold)
    new_v = Reshape (v, fold)
    long_k = Concat <axis = 1> (folded_k, new_k)
    long_v = Concat <axis = 1> (folded_v, new_v)
    present_k = Unsqueeze (long_k, zero_at)
    present_v = Unsqueeze (long_v, zero_at)
    """
    + ATTEND,
    "multi-head operator": """
    o_flat, present_k, present_v =
        com.microsoft.MultiHeadAttention <num_heads = 2> (q_rows, k_rows, v_rows, , , , past_k, past_v)
    """
    + SPLIT_O,
    "grouped operator, q k v packed": """
    packed = Concat <axis = 2> (q_rows, k_rows, v_rows)
    ends = Constant <value = int32[1] {3}> ()
    total = Constant <value = int32 {4}> ()
    o_flat, present_k, present_v =
        com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2> (packed, , , past_k, past_v, ends, total)
    """
    + SPLIT_O,
    "ONNX operator": "o, present_k, present_v = Attention (q, k, v, bias, past_k, past_v)",
    "ONNX operator over a concatenated cache": append() + "o = Attention (q, present_k, present_v, bias)",
}


@pytest.mark.parametrize("form", COMPLETE)
def test_a_growing_cache_is_complete_in_every_form_of_attention(form: str) -> None:
    interface = find_interface(decoder(COMPLETE[form]))
    assert interface.problems == ()
    assert interface.kv == (KVPair(0, *USUAL, kv_heads=2, key_dim=8, value_dim=8, elem_type=FLOAT),)
    assert interface.contract.kv == interface.kv


@pytest.mark.parametrize("projection", ["MatMul", "QLinearMatMul"])
def test_an_open_head_dimension_is_read_off_the_projection_of_a_fused_attention(projection: str) -> None:
    after = AFTER
    if projection == "QLinearMatMul":
        quantized = """
        o_small = QuantizeLinear (o_rows, step, middle)
        attended_small = QLinearMatMul (o_small, step, middle, wo_small, step, middle, step, middle)
        attended = DequantizeLinear (attended_small, step, middle)
        """
        after = AFTER.replace("attended = MatMul (o_rows, wo)", quantized)
    model = decoder(
        COMPLETE["grouped operator, q k v packed"],
        CACHE.replace("8]", "width]"),
        PRESENT.replace("8]", "width]"),
        after=after,
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((16, 16), np.int8), "wo_small"))
    pair = only_pair(find_interface(model))
    assert (pair.key_dim, pair.value_dim) == (8, 8)


# What is written of the cache, inputs and outputs where they are not the usual ones, and the codes that name it.
UNUSUAL: dict[str, tuple[str, str, str, list[str]]] = {
    "keys cached transposed": (
        """
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        present_k = Concat <axis = 3> (past_k, kt)
        present_v = Concat <axis = 2> (past_v, v)
        scores = MatMul (q, present_k)
        p = Softmax <axis = -1> (scores)
        o = MatMul (p, present_v)
        """,
        CACHE.replace("p,8] past_k", "8,p] past_k"),
        PRESENT.replace("n,8] present_k", "8,n] present_k"),
        ["CACHE_AXES"],
    ),
    "positions outside of heads": (
        """
        present_k = Concat <axis = 1> (past_k, k_split)
        present_v = Concat <axis = 1> (past_v, v_split)
        keys = Transpose <perm = [0, 2, 1, 3]> (present_k)
        values = Transpose <perm = [0, 2, 1, 3]> (present_v)
        """
        + attend("keys", "values"),
        CACHE.replace("2,p", "p,2"),
        PRESENT.replace("2,n", "n,2"),
        ["CACHE_AXES"],
    ),
    "positions outside of heads, and turned inside for the concatenation": (
        """
        turned_k = Transpose <perm = [0, 2, 1, 3]> (past_k)
        turned_v = Transpose <perm = [0, 2, 1, 3]> (past_v)
        long_k = Concat <axis = 2> (turned_k, k)
        long_v = Concat <axis = 2> (turned_v, v)
        present_k = Transpose <perm = [0, 2, 1, 3]> (long_k)
        present_v = Transpose <perm = [0, 2, 1, 3]> (long_v)
        """
        + attend("long_k", "long_v"),
        CACHE.replace("2,p", "p,2"),
        PRESENT.replace("2,n", "n,2"),
        ["CACHE_AXES"],
    ),
    "new rows in front": (
        "present_k = Concat <axis = 2> (k, past_k) present_v = Concat <axis = 2> (v, past_v)" + ATTEND,
        CACHE,
        PRESENT,
        ["PREPENDED_CACHE"],
    ),
    "a window, cut after the concatenation": (
        """
        long_k = Concat <axis = 2> (past_k, k)
        long_v = Concat <axis = 2> (past_v, v)
        present_k = Slice (long_k, one_at, end, two_at)
        present_v = Slice (long_v, one_at, end, two_at)
        """
        + attend("long_k", "long_v"),
        CACHE,
        PRESENT,
        ["SLIDING_CACHE"],
    ),
    "a window, cut before the concatenation": (
        """
        kept_k = Slice (past_k, one_at, end, two_at)
        kept_v = Slice (past_v, one_at, end, two_at)
        present_k = Concat <axis = 2> (kept_k, k)
        present_v = Concat <axis = 2> (kept_v, v)
        """
        + ATTEND,
        CACHE,
        PRESENT,
        ["SLIDING_CACHE"],
    ),
    "a window that the grouped operator keeps": (
        COMPLETE["grouped operator, q k v packed"].replace(
            "num_heads = 2,", "num_heads = 2, local_window_size = 4, sliding_window_cache = 1,"
        ),
        CACHE,
        PRESENT,
        ["SLIDING_CACHE"],
    ),
    "a buffer written by TensorScatter": (
        """
        present_k = TensorScatter <axis = 2> (past_k, k, write_indices)
        present_v = TensorScatter <axis = 2> (past_v, v, write_indices)
        o = Attention (q, present_k, present_v, , , , nonpad_kv_seqlen)
        """,
        BUFFER + ", int64[1] write_indices, int64[1] nonpad_kv_seqlen",
        FILLED,
        ["STATIC_CACHE", "COUNTER_INPUT"],
    ),
    "a buffer written by ScatterElements": (
        """
        present_k = ScatterElements <axis = 2> (past_k, rows, k)
        present_v = ScatterElements <axis = 2> (past_v, rows, v)
        """
        + ATTEND,
        BUFFER + ", int64[1,2,q,8] rows",
        FILLED,
        ["STATIC_CACHE", "UNKNOWN_INPUT"],
    ),
    "a buffer written by Where": (
        "present_k = Where (is_new, k, past_k) present_v = Where (is_new, v, past_v)" + ATTEND,
        BUFFER + ", bool[1,1,64,1] is_new",
        FILLED,
        ["STATIC_CACHE", "UNKNOWN_INPUT"],
    ),
    "a buffer written by arithmetic": (
        """
        old_k = Mul (past_k, keep)
        old_v = Mul (past_v, keep)
        new_k = Mul (k, write)
        new_v = Mul (v, write)
        present_k = Add (old_k, new_k)
        present_v = Add (old_v, new_v)
        """
        + ATTEND,
        BUFFER + ", float[1,1,64,1] keep, float[1,1,64,1] write",
        FILLED,
        ["STATIC_CACHE", "UNKNOWN_INPUT"],
    ),
    "quantized rows": (
        """
        k8 = QuantizeLinear (k, step, middle)
        v8 = QuantizeLinear (v, step, middle)
        present_k = Concat <axis = 2> (past_k, k8)
        present_v = Concat <axis = 2> (past_v, v8)
        keys = DequantizeLinear (present_k, step, middle)
        values = DequantizeLinear (present_v, step, middle)
        """
        + attend("keys", "values"),
        CACHE.replace("float", "int8"),
        PRESENT.replace("float", "int8"),
        ["QUANTIZED_CACHE"],
    ),
    "heads folded into the batch": (
        """
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        new_k = Reshape (kt, fold_keys)
        new_v = Reshape (v, fold)
        present_k = Concat <axis = 2> (past_k, new_k)
        present_v = Concat <axis = 1> (past_v, new_v)
        folded_q = Reshape (q, fold)
        scores = MatMul (folded_q, present_k)
        p = Softmax <axis = -1> (scores)
        folded_o = MatMul (p, present_v)
        o = Reshape (folded_o, unfold)
        """,
        "float[2,8,p] past_k, float[2,p,8] past_v",
        "float[2,8,n] present_k, float[2,n,8] present_v",
        ["FUSED_KV"],
    ),
}


@pytest.mark.parametrize("form", UNUSUAL)
def test_an_unusual_cache_is_found_and_its_code_says_what_is_unusual(form: str) -> None:
    cache, inputs, outputs, expected = UNUSUAL[form]
    interface = find_interface(decoder(cache, inputs, outputs))
    assert codes(interface) == expected
    assert names(only_pair(interface)) == USUAL
    with pytest.raises(ContractError) as caught:
        _ = interface.contract
    assert str(caught.value) == interface.problems[0].message
    assert "past_k" in interface.problems[0].evidence["tensors"]


@pytest.mark.parametrize(
    ("form", "heads", "key_dim", "value_dim"),
    [("keys cached transposed", 2, 8, 8), ("positions outside of heads", 2, 8, 8)],
)
def test_heads_and_dimensions_are_read_off_the_axes_that_hold_them(
    form: str, heads: int, key_dim: int, value_dim: int
) -> None:
    cache, inputs, outputs, _ = UNUSUAL[form]
    pair = only_pair(find_interface(decoder(cache, inputs, outputs)))
    assert (pair.kv_heads, pair.key_dim, pair.value_dim) == (heads, key_dim, value_dim)


def test_one_operand_for_past_keys_and_values_is_a_fused_cache() -> None:
    cache = """
    weights = Concat <axis = 1> (wq, wk, wv)
    o_flat, present = com.microsoft.Attention <num_heads = 2, unidirectional = 1> (x, weights, bqkv, , past)
    """
    inputs, outputs = "float[2,1,2,p,8] past", "float[2,1,2,n,8] present"
    interface = find_interface(decoder(cache + SPLIT_O, inputs, outputs, weights={"bqkv": (48,)}))
    assert codes(interface) == ["FUSED_KV"]
    assert names(only_pair(interface)) == ("past", "past", "present", "present")


def test_keys_and_values_side_by_side_in_one_row_are_a_fused_cache() -> None:
    cache = """
    new = Concat <axis = 2> (k_rows, v_rows)
    present = Concat <axis = 1> (past, new)
    flat_k, flat_v = Split <axis = 2> (present, halves)
    split_k = Reshape (flat_k, by_head)
    split_v = Reshape (flat_v, by_head)
    keys = Transpose <perm = [0, 2, 1, 3]> (split_k)
    values = Transpose <perm = [0, 2, 1, 3]> (split_v)
    """ + attend("keys", "values")
    interface = find_interface(decoder(cache, "float[1,p,32] past", "float[1,n,32] present"))
    assert codes(interface) == ["FUSED_KV"]
    assert names(only_pair(interface)) == ("past", "past", "present", "present")


def test_keys_and_values_projected_from_one_cache_are_latent() -> None:
    cache = """
    c = MatMul (x, down)
    present = Concat <axis = 1> (past, c)
    flat_k = MatMul (present, up_k)
    flat_v = MatMul (present, up_v)
    split_k = Reshape (flat_k, by_head)
    split_v = Reshape (flat_v, by_head)
    keys = Transpose <perm = [0, 2, 1, 3]> (split_k)
    values = Transpose <perm = [0, 2, 1, 3]> (split_v)
    """ + attend("keys", "values")
    weights = {"down": (16, 4), "up_k": (4, 16), "up_v": (4, 16)}
    interface = find_interface(decoder(cache, "float[1,p,4] past", "float[1,n,4] present", weights=weights))
    assert codes(interface) == ["LATENT_KV"]
    assert names(only_pair(interface)) == ("past", "past", "present", "present")


def test_a_latent_cache_beside_rotated_keys_is_the_value_and_the_keys_are_the_key() -> None:
    """As absorbed MLA has it: scores over the latent and over the rotated part, values from the latent."""
    cache = """
    c_rows = MatMul (x, down)
    c = Unsqueeze (c_rows, one_at)
    r_rows = MatMul (x, down_r)
    r = Unsqueeze (r_rows, one_at)
    latent = Concat <axis = 2> (past_latent, c)
    rotated = Concat <axis = 2> (past_rotated, r)
    q_latent = MatMul (q, absorb)
    q_rotated = MatMul (q, rotate)
    latent_t = Transpose <perm = [0, 1, 3, 2]> (latent)
    rotated_t = Transpose <perm = [0, 1, 3, 2]> (rotated)
    scores_l = MatMul (q_latent, latent_t)
    scores_r = MatMul (q_rotated, rotated_t)
    scores = Add (scores_l, scores_r)
    p = Softmax <axis = -1> (scores)
    o_latent = MatMul (p, latent)
    o = MatMul (o_latent, up)
    """
    weights = {"down": (16, 4), "down_r": (16, 2), "absorb": (2, 8, 4), "rotate": (8, 2), "up": (2, 4, 8)}
    inputs = "float[1,1,p,4] past_latent, float[1,1,p,2] past_rotated"
    outputs = "float[1,1,n,4] latent, float[1,1,n,2] rotated"
    interface = find_interface(decoder(cache, inputs, outputs, weights=weights))
    assert codes(interface) == ["LATENT_KV"]
    assert names(only_pair(interface)) == ("past_rotated", "past_latent", "rotated", "latent")


@pytest.mark.parametrize(
    ("cache", "inputs", "outputs", "code", "expected"),
    [
        (append() + ATTEND, CACHE, "", "NO_PRESENT", ("past_k", "past_v", None, None)),
        (
            append() + ATTEND,
            CACHE,
            "float[1,2,q,8] k, float[1,2,q,8] v",
            "NEW_ROWS_ONLY",
            ("past_k", "past_v", "k", "v"),
        ),
        (attend("k", "v"), "", "float[1,2,q,8] k, float[1,2,q,8] v", "NO_PAST", (None, None, "k", "v")),
        (
            "present_k = Identity (k) present_v = Identity (v)" + attend("k", "v"),
            "",
            PRESENT,
            "NO_PAST",
            (None, None, "present_k", "present_v"),
        ),
        (
            """
            present_k = Transpose <perm = [0, 2, 1, 3]> (k_split)
            present_v = Cast <to = 1> (v)
            """
            + attend("k", "v"),
            "",
            PRESENT,
            "NO_PAST",
            (None, None, "present_k", "present_v"),
        ),
    ],
)
def test_what_is_not_taken_or_not_given_is_none(
    cache: str, inputs: str, outputs: str, code: str, expected: tuple[str | None, ...]
) -> None:
    interface = find_interface(decoder(cache, inputs, outputs))
    assert codes(interface) == [code]
    assert names(only_pair(interface)) == expected


def test_a_key_without_its_value_is_one_half_of_a_pair() -> None:
    cache = "present_k = Concat <axis = 2> (past_k, k)" + attend("present_k", "v")
    interface = find_interface(decoder(cache, "float[1,2,p,8] past_k", "float[1,2,n,8] present_k"))
    assert codes(interface) == ["UNPAIRED_CACHE"]
    assert names(only_pair(interface)) == ("past_k", None, "present_k", None)


def test_a_graph_without_any_cache_says_so() -> None:
    interface = find_interface(decoder(attend("k", "v"), "", ""))
    assert (codes(interface), interface.kv) == (["NO_KV_CACHE"], ())


def test_two_caches_that_are_both_the_keys_of_one_attention_are_ambiguous() -> None:
    cache = (
        append()
        + """
    more_k = Concat <axis = 2> (past_more, k)
    keys = Add (present_k, more_k)
    """
        + attend("keys", "present_v")
    )
    interface = find_interface(
        decoder(cache, CACHE + ", float[1,2,p,8] past_more", PRESENT + ", float[1,2,n,8] more_k")
    )
    assert codes(interface) == ["AMBIGUOUS_CACHE"]
    assert set(interface.problems[0].evidence["tensors"]) == {"past_k", "past_v", "past_more"}


def test_all_keys_before_all_values_are_paired_by_their_attention() -> None:
    """As torch's exporter flattens a cache: key_cache.0, key_cache.1, …, value_cache.0, …"""
    model = tiny_decoder(3)
    for values in (model.graph.input, model.graph.output):
        ordered = sorted(values, key=lambda v: (v.name.endswith("value"), v.name.endswith("key")))
        new = {v.name: f"cache_{at}" if "past" in v.name else f"updated_{at}" for at, v in enumerate(ordered)}
        kept = {name: name if not name.startswith(("past.", "present.")) else new[name] for name in new}
        copies = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in ordered]
        del values[:]
        values.extend(copies)
        rename(model, kept)
    kv = find_interface(model).kv
    pasts = [(pair.past_key, pair.past_value) for pair in kv]
    assert pasts == [(f"cache_{3 + layer}", f"cache_{6 + layer}") for layer in range(3)]


def rename(model: onnx.ModelProto, new: dict[str, str]) -> None:
    for node in model.graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    for value in (*model.graph.input, *model.graph.output):
        value.name = new.get(value.name, value.name)


@pytest.mark.parametrize("form", [*COMPLETE, *UNUSUAL])
def test_the_graphs_of_these_tests_are_graphs_that_onnx_runtime_takes(form: str) -> None:
    cache, inputs, outputs, _ = UNUSUAL.get(form) or (COMPLETE[form], CACHE, PRESENT, [])
    open_session(decoder(cache, inputs, outputs).SerializeToString(), SessionSpec(threads=1))
