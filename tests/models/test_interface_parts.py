"""Token ids, mask, positions and logits are told apart by dataflow, and an input that is none of them is named."""

from __future__ import annotations

import onnx
import pytest
from cache_graphs import BEFORE, CACHE, append, attend, decoder
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_graphs import tiny_decoder

from qbpass.models.errors import ContractError
from qbpass.models.find_interface import find_interface
from qbpass.models.interface import Interface, InterfaceProblem

PLAIN = append() + attend("present_k", "present_v")


def codes(interface: Interface) -> list[str]:
    return [problem.code for problem in interface.problems]


def test_a_ready_made_mask_is_named_as_one() -> None:
    cache = append() + attend("present_k", "present_v", bias="given")
    interface = find_interface(decoder(cache, f"{CACHE}, float[1,1,q,n] given"))
    assert codes(interface) == ["ATTENTION_BIAS_INPUT"]
    assert interface.others == ("given",)


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ("int64[1] write_at", "COUNTER_INPUT"),
        ("int64[3,1,q] position_ids", "POSITION_RANK"),
        ("int64[1] keep", "LOGITS_COUNT_INPUT"),
        ("int64[1,q] segments", "UNKNOWN_INPUT"),
    ],
)
def test_an_input_that_the_runtime_does_not_feed_has_a_code(ids: str, code: str) -> None:
    use = {
        "COUNTER_INPUT": "rows = Add (write_at, one_at) longer = ScatterND (present_k, rows, present_k)",
        "POSITION_RANK": "angles = Cast <to = 1> (position_ids) c = Cos (angles)",
        "LOGITS_COUNT_INPUT": "from = Neg (keep)",
        "UNKNOWN_INPUT": "s = Cast <to = 1> (segments)",
    }[code]
    ids_first = f"int64[1,q] input_ids, {ids}, int64[1,n] attention_mask"
    interface = find_interface(decoder(PLAIN + use, ids=ids_first))
    assert codes(interface) == [code]
    assert (interface.input_ids, interface.attention_mask) == ("input_ids", "attention_mask")


@pytest.mark.parametrize("table", ["initializer", "constant", "elements", "angles"])
def test_positions_are_found_by_what_becomes_of_them(table: str) -> None:
    use = {
        "initializer": "turn = Gather (places, position_ids)",
        "constant": "held = Constant <value = float[3,2] {0, 1, 2, 3, 4, 5}> () turn = Gather (held, position_ids)",
        "elements": """repeated = Tile (places, by_two) turned = Unsqueeze (position_ids, two_at)
                       turn = GatherElements <axis = 1> (repeated, turned)""",
        "angles": "numbers = Cast <to = 1> (position_ids) turn = Sin (numbers)",
    }[table]
    ids = "int64[1,n] attention_mask, int64[1,q] position_ids, int64[1,q] input_ids"
    before = BEFORE + "by_two = Constant <value = int64[2] {1, 1}> ()"
    interface = find_interface(decoder(use + PLAIN, before=before, ids=ids, weights={"places": (64, 4)}))
    assert interface.problems == ()
    assert (interface.input_ids, interface.position_ids, interface.attention_mask) == (
        "input_ids",
        "position_ids",
        "attention_mask",
    )


@pytest.mark.parametrize("tied", ["Transpose", "Reshape"])
def test_a_table_shared_with_the_head_is_an_embedding_table(tied: str) -> None:
    use = {"Transpose": "tied = Transpose <perm = [1, 0]> (head)", "Reshape": "tied = Reshape (head, rows)"}[tied]
    rows = "rows = Constant <value = int64[2] {29, 16}> ()"
    before = BEFORE.replace("x = Gather (table, input_ids)", f"{rows} {use} x = Gather (tied, input_ids)")
    interface = find_interface(decoder(PLAIN, before=before))
    assert (interface.problems, interface.input_ids, interface.vocab_size) == ((), "input_ids", 29)


def test_a_symbol_named_1_is_no_cut_and_a_cut_is_found_where_it_is_made() -> None:
    """Seq2seq exporters name the logits' rows "1"; such a graph gives a row for every token."""
    model = tiny_decoder(1)
    next(v for v in model.graph.output if v.name == "logits").type.tensor_type.shape.dim[1].dim_param = "1"
    assert find_interface(model).problems == ()
    cut = find_interface(tiny_decoder(1, last_only="gather"))
    assert codes(cut) == ["LAST_TOKEN_LOGITS"]
    assert cut.problems[0].evidence["cut_by"].startswith("Gather")
    assert (cut.logits, cut.vocab_size) == ("logits", 53)


def test_hidden_states_are_not_taken_for_logits() -> None:
    """A decoder exported without its head gives its last norm's result."""
    after = """
    o_split = Transpose <perm = [0, 2, 1, 3]> (o)
    o_rows = Reshape (o_split, by_row)
    attended = MatMul (o_rows, wo)
    h = Add (x, attended)
    logits = LayerNormalization (h, scale)
    """
    model = decoder(PLAIN, after=after, weights={"scale": (16,)})
    next(v for v in model.graph.output if v.name == "logits").type.tensor_type.shape.dim[2].dim_value = 16
    interface = find_interface(model)
    assert (codes(interface), interface.logits) == (["NO_LOGITS"], None)


def test_problems_of_one_code_are_one_with_all_their_tensors() -> None:
    model = tiny_decoder(2)
    for v in model.graph.input:
        if v.name.startswith("past."):
            v.type.tensor_type.shape.dim[2].dim_value = 128
    (problem,) = find_interface(model).problems
    assert problem.code == "FIXED_PAST"
    assert problem.evidence["tensors"] == {
        f"past.{layer}.{kind}": [1, 2, 128, 8] for layer in range(2) for kind in ("key", "value")
    }


def test_a_search_that_would_not_end_is_given_up_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qbpass.models.dataflow.LEAST_STEPS", -100)
    assert "SEARCH_LIMIT" in codes(find_interface(tiny_decoder(2)))


def test_a_code_that_is_not_in_the_list_is_no_code() -> None:
    with pytest.raises(ValueError, match="NEW_CODE is no code"):
        InterfaceProblem("NEW_CODE", "something is wrong")


EDITS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=6)


@settings(deadline=None, derandomize=True)
@given(form=st.sampled_from(["decomposed", "gqa", "onnx", "onnx_concat"]), edits=EDITS)
def test_whatever_is_done_to_a_graph_its_interface_is_read(form: str, edits: list[tuple[int, int, int]]) -> None:
    """And an interface without a problem gives a contract; one with a problem raises that problem's line."""
    model = tiny_decoder(1, form)
    for kind, first, second in edits:
        edit(model, kind, first, second)
    interface = find_interface(model)
    if interface.problems:
        with pytest.raises(ContractError) as caught:
            _ = interface.contract
        assert str(caught.value) == interface.problems[0].message
        assert "\n" not in str(caught.value)
    else:
        assert interface.contract.kv == interface.kv


def edit(model: onnx.ModelProto, kind: int, first: int, second: int) -> None:
    graph = model.graph
    node = graph.node[first % len(graph.node)]
    values = [*graph.input, *graph.output]
    chosen = values[second % len(values)]
    names = [name for other in graph.node for name in other.output]
    if kind == 0 and node.input:
        node.input[second % len(node.input)] = names[first % len(names)]
    elif kind == 1:
        node.op_type = graph.node[second % len(graph.node)].op_type
    elif kind == 2:
        chosen.type.tensor_type.elem_type = first % 20
    elif kind == 3:
        chosen.type.tensor_type.ClearField("shape")
    elif kind == 4 and chosen.type.tensor_type.shape.dim:
        dims = chosen.type.tensor_type.shape.dim
        dims[first % len(dims)].dim_value = (-1, 0, 1, 7, 2**62)[first % 5]
    elif kind == 5 and node.attribute:
        del node.attribute[:]
