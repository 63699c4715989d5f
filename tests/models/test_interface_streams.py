"""Other streams' keys and values, and states that each call replaces, are told from caches that grow."""

from __future__ import annotations

from cache_graphs import BEFORE, CACHE, PRESENT, append, attend, decoder

from qbpass.models.find_interface import find_interface
from qbpass.models.interface import CrossKV, Interface, StatePair

PLAIN = append() + attend("present_k", "present_v")
SELF_THEN_CROSS = (
    append() + attend("present_k", "present_v", result="own") + attend("enc_k", "enc_v", "own", bias="zero")
)
STATES = """
    enc_k_rows = MatMul (states, wk)
    enc_v_rows = MatMul (states, wv)
    enc_k_split = Reshape (enc_k_rows, by_head)
    enc_v_split = Reshape (enc_v_rows, by_head)
    enc_k = Transpose <perm = [0, 2, 1, 3]> (enc_k_split)
    enc_v = Transpose <perm = [0, 2, 1, 3]> (enc_v_split)
"""
ENCODER = "float[1,2,s,8] enc_k, float[1,2,s,8] enc_v"


BATCH_FROM_TOKENS = """
    batch = Shape <start = 0, end = 1> (input_ids)
    eight = Constant <value = int64[1] {8}> ()
    by_batch = Concat <axis = 0> (batch, last, two_at, eight)
    enc_k_split = Reshape (enc_k_rows, by_batch)
"""


def codes(interface: Interface) -> list[str]:
    return [problem.code for problem in interface.problems]


def test_keys_and_values_of_another_stream_are_no_cache_that_grows() -> None:
    interface = find_interface(decoder(SELF_THEN_CROSS, f"{CACHE}, {ENCODER}"))
    assert codes(interface) == ["CROSS_ATTENTION_CACHE"]
    assert [pair.past_key for pair in interface.kv] == ["past_k"]
    assert interface.cross_kv == (CrossKV(0, "enc_k", "enc_v"),)


def test_another_streams_padding_is_masked_away_and_the_rest_is_still_its_cache() -> None:
    masked = SELF_THEN_CROSS.replace("(enc_k)", "(kept_k)")
    before = BEFORE + "kept_k = Where (there, enc_k, zero)"
    interface = find_interface(decoder(masked, f"{CACHE}, {ENCODER}, bool[1,1,s,1] there", before=before))
    assert interface.cross_kv == (CrossKV(0, "enc_k", "enc_v"),)
    assert interface.others == ("there",)


def test_another_streams_cache_that_is_handed_through_is_still_read_only() -> None:
    """As merged decoders give it out again."""
    handed = "out_k = Identity (enc_k) out_v = Identity (enc_v)"
    outputs = f"{PRESENT}, float[1,2,s,8] out_k, float[1,2,s,8] out_v"
    interface = find_interface(decoder(SELF_THEN_CROSS + handed, f"{CACHE}, {ENCODER}", outputs))
    assert interface.cross_kv == (CrossKV(0, "enc_k", "enc_v"),)
    assert len(interface.kv) == 1


def test_keys_that_no_token_has_a_part_in_are_an_encoders() -> None:
    """The decoder for the first call gives out both its own rows and the encoder's, and sizes by tokens alone."""
    cache = STATES + attend("k", "v", result="own") + attend("enc_k", "enc_v", "own", bias="zero")
    cache = cache.replace("enc_k_split = Reshape (enc_k_rows, by_head)", BATCH_FROM_TOKENS)
    outputs = f"float[1,2,q,8] k, float[1,2,q,8] v, {ENCODER}"
    interface = find_interface(decoder(cache, "float[1,s,16] states", outputs))
    assert codes(interface) == ["NO_PAST", "CROSS_ATTENTION_CACHE", "ENCODER_STATES"]
    assert [(pair.past_key, pair.present_key) for pair in interface.kv] == [(None, "k")]
    assert interface.cross_kv == (CrossKV(0, "enc_k", "enc_v"),)
    assert interface.others == ("states",)


def test_embeddings_are_told_from_an_encoders_states_by_the_keys_they_make() -> None:
    before = BEFORE.replace("x = Gather (table, input_ids)", "x = Add (embeddings, zero)")
    inputs, ids = f"{CACHE}, float[1,q,16] embeddings", "int64[1,n] attention_mask"
    interface = find_interface(decoder(PLAIN, inputs, before=before, ids=ids))
    assert codes(interface) == ["INPUT_EMBEDDINGS", "NO_INPUT_IDS"]
    with_states = find_interface(decoder(STATES + SELF_THEN_CROSS, f"{CACHE}, float[1,s,16] states"))
    assert codes(with_states) == ["ENCODER_STATES"]


HYBRID = """
    by_channel = Transpose <perm = [0, 2, 1]> (x)
    window = Concat <axis = 2> (past_conv, by_channel)
    present_conv = Slice (window, third_last, end, two_at)
    convolved = Conv <group = 16> (window, taps)
    gated = Sigmoid (convolved)
    drive = Transpose <perm = [0, 2, 1]> (gated)
    newest = Slice (drive, last, end, one_at)
    faded = Mul (past_state, decay)
    present_state = Add (faded, newest)
"""


def test_states_are_paired_with_what_they_become() -> None:
    """conv_state by its window, recurrent state by its decay; listed in another order than the outputs."""
    inputs = f"float[1,1,16] past_state, {CACHE}, float[1,16,3] past_conv"
    outputs = f"float[1,16,3] present_conv, {PRESENT}, float[1,1,16] present_state"
    weights = {"taps": (16, 1, 4), "decay": (16,)}
    interface = find_interface(decoder(HYBRID + PLAIN, inputs, outputs, weights=weights))
    assert codes(interface) == ["RECURRENT_STATE"]
    assert interface.states == (
        StatePair("past_state", "present_state", 3),
        StatePair("past_conv", "present_conv", 3),
    )
    assert len(interface.kv) == 1


def test_each_layers_state_is_paired_with_its_own_successor() -> None:
    """Earlier states reach every later output through the hidden stream; form and names are the same for all."""
    layer = "faded{0} = Mul (s{0}, decay) t{0} = Add (faded{0}, x{0}) x{1} = Mul (x{0}, t{0})"
    body = "\n".join(layer.format(at, at + 1) for at in range(4))
    before = BEFORE.replace("x = Gather (table, input_ids)", f"x0 = Gather (table, input_ids) {body} x = Tanh (x4)")
    inputs = f"{CACHE}, " + ", ".join(f"float[1,1,16] s{at}" for at in range(4))
    outputs = ", ".join(f"float[1,1,16] t{at}" for at in (3, 1, 0, 2)) + f", {PRESENT}"
    interface = find_interface(decoder(PLAIN, inputs, outputs, before=before, weights={"decay": (16,)}))
    assert [(pair.past, pair.present) for pair in interface.states] == [(f"s{at}", f"t{at}") for at in range(4)]


def test_states_of_fused_operators_and_loops_are_states() -> None:
    fused = """
    mixed, present_state =
        com.microsoft.LinearAttention <q_num_heads = 2, kv_num_heads = 2> (q_rows, k_rows, v_rows, past_state)
    once = Constant <value = int64 {1}> ()
    present_loop = Loop (once, , past_loop) <body = b (int64 i, bool go, float[1,2] s) => (bool more, float[1,2] t)
        { more = Identity (go) t = Tanh (s) }>
    """
    inputs = f"{CACHE}, float[1,2,8,8] past_state, float[1,2] past_loop"
    outputs = f"{PRESENT}, float[1,2,8,8] present_state, float[1,2] present_loop"
    interface = find_interface(decoder(fused + PLAIN, inputs, outputs))
    assert interface.states == (
        StatePair("past_state", "present_state", 4),
        StatePair("past_loop", "present_loop", 2),
    )


def test_hidden_states_that_go_in_and_come_out_are_no_state() -> None:
    before = BEFORE.replace("x = Gather (table, input_ids)", "x = Add (embeddings, zero)")
    after = """
    o_split = Transpose <perm = [0, 2, 1, 3]> (o)
    hidden = Reshape (o_split, by_row)
    logits = MatMul (hidden, head)
    """
    inputs, outputs = f"{CACHE}, float[1,q,16] embeddings", f"{PRESENT}, float[1,q,16] hidden"
    ids = "int64[1,n] attention_mask, int64[1,q] position_ids"
    interface = find_interface(decoder(PLAIN, inputs, outputs, before=before, after=after, ids=ids))
    assert interface.states == ()
