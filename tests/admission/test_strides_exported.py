"""What admission says of a site is checked by running the site's own nodes on index tensors, and its mask on calls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper
from site_graphs import Knobs, make_decoder

from qbpass.admission.admit import admit
from qbpass.admission.calls.call import Call
from qbpass.admission.dataflow import Flow
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides.algebra import Operation
from qbpass.admission.strides.call_audit import CallAudit, view_problems
from qbpass.admission.strides.exported_audit import ExportedGraph
from qbpass.admission.strides.findings import Place
from qbpass.admission.strides.mask_rows import MaskRows
from qbpass.admission.strides.required import NOTHING, required_reads, value_ends
from qbpass.admission.strides.view import Allocation, View
from qbpass.models.decoder import Decoder

CALLS = (Call(1, 5), Call(2, 3), Call(3, 4))


def site_of(decoder: Decoder, layer: int = 0) -> AttentionSite:
    """The site as it was read, admitted or not."""
    site = admit(decoder).sites[layer].site
    assert site is not None
    return site


def audit(knobs: Knobs, site: AttentionSite | None = None) -> list[CallAudit]:
    decoder = make_decoder(knobs)
    return ExportedGraph(Flow.of(decoder)).audit(site or site_of(decoder), CALLS)


def codes(audits: list[CallAudit]) -> set[str]:
    return {problem.code for audit in audits for problem in audit.problems}


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(),
        Knobs(heads=2, kv_heads=2, repeat="none"),
        Knobs(heads=4, kv_heads=1),
        Knobs(product="matmul"),
        Knobs(product="matmul", weights="nan_guard"),
        Knobs(repeat="scaled"),
    ],
)
def test_the_operations_of_an_admitted_site_read_what_the_definition_asks(knobs: Knobs) -> None:
    audits = audit(knobs)
    assert codes(audits) == set()
    assert [len(entry.operations) > 3 for entry in audits] == [True] * len(CALLS)


@pytest.mark.parametrize(
    ("knobs", "found"),
    [
        (Knobs(repeat="tile"), {"KEY_MAP", "VALUE_MAP"}),
        (Knobs(repeat="rolled_rows"), {"KEY_MAP"}),
        (Knobs(join="new_first"), {"UNTRACED"}),
        (Knobs(scores="twice"), {"UNTRACED"}),
        (Knobs(scores="sinks"), {"UNTRACED"}),
        (Knobs(softmax="over_queries"), {"UNTRACED"}),
        (Knobs(terms="none"), {"MASK_AHEAD"}),
        (Knobs(terms="indicator"), {"MASK_AHEAD"}),
        (Knobs(terms="two"), {"UNTRACED"}),
    ],
)
def test_what_admission_refuses_is_seen_by_the_audit_too(knobs: Knobs, found: set[str]) -> None:
    """By other means: the site is read as it is, its nodes are run, and nothing asks why admission refused it."""
    decoder = make_decoder(knobs)
    site = admit(decoder).sites[0].site
    assert site is not None
    assert codes(ExportedGraph(Flow.of(decoder)).audit(site, CALLS)) == found


def test_a_site_that_is_read_wrong_is_not_what_its_nodes_do() -> None:
    """Admission's own mistakes: each field of the site that the audit looks at, made wrong."""
    knobs = Knobs(layers=2, kv_heads=2, heads=4)
    decoder = make_decoder(knobs)
    site, other = site_of(decoder), site_of(decoder, 1)
    graph = ExportedGraph(Flow.of(decoder))
    assert site.scale is not None
    wrong = {
        "kv_heads": (replace(site, kv_heads=1), "UNTRACED"),
        "scale": (replace(site, scale=2 * site.scale), "SCALE"),
        "k": (replace(site, new_key=other.new_key, past_key=other.past_key), "UNTRACED"),
        "swapped": (
            replace(
                site,
                past_key=site.past_value,
                new_key=site.new_value,
                past_value=site.past_key,
                new_value=site.new_key,
            ),
            "UNTRACED",
        ),
        "mask": (replace(site, mask=None), "UNTRACED"),
        "output": (replace(site, output=site.nodes.softmax), "UNTRACED"),
    }
    one_tensor = graph.audit(replace(site, new_value=site.new_key), CALLS[:1])[0].problems
    assert [p.message for p in one_tensor] == [f"the exported graph reads {site.new_key!r} as two operands"]
    for name, (broken, code) in wrong.items():
        assert code in codes(graph.audit(broken, CALLS)), name
    assert codes(graph.audit(site, CALLS)) == set()


def test_arithmetic_on_sizes_between_the_cache_and_a_product_is_no_factor() -> None:
    """TorchScript's Expand: Where(target == -1 * ones, ones, target), ones as many as the present has axes."""
    decoder = make_decoder(Knobs())
    graph = decoder.model.graph
    at, expand = next((k, node) for k, node in enumerate(graph.node) if node.op_type == "Expand")
    target, wide = expand.input[1], expand.input[0]
    one = numpy_helper.from_array(np.array([1], np.int64))
    graph.initializer.append(numpy_helper.from_array(np.array(-1, np.int64), "minus"))
    made = [
        helper.make_node("Shape", [wide], ["ts.shape"]),
        helper.make_node("Shape", ["ts.shape"], ["ts.rank"]),
        helper.make_node("ConstantOfShape", ["ts.rank"], ["ts.ones"], value=one),
        helper.make_node("Mul", ["ts.ones", "minus"], ["ts.minus"]),
        helper.make_node("Equal", [target, "ts.minus"], ["ts.open"]),
        helper.make_node("Where", ["ts.open", "ts.ones", target], ["ts.target"]),
    ]
    for offset, node in enumerate(made):
        graph.node.insert(at + offset, node)
    graph.node[at + len(made)].input[1] = "ts.target"
    site = site_of(decoder)
    assert "ts.minus" in site.nodes.key_path
    assert site.key_steps == ()
    assert site.scale == pytest.approx(8**-0.5)
    assert codes(ExportedGraph(Flow.of(decoder)).audit(site, CALLS)) == set()


def test_a_problem_names_the_place_and_what_is_read_there() -> None:
    problem = next(p for entry in audit(Knobs(repeat="tile")) for p in entry.problems if p.code == "KEY_MAP")
    assert problem.site == "attention.0"
    assert problem.message == "head 1, row 0: row 0, head 1, channel 0 instead of row 0, head 0, channel 0"
    assert problem.evidence == {
        "graph": "exported",
        "queries": 1,
        "past": 5,
        "found_by": "both",
        "pairs_differing": 2,
        "pairs": 4,
        "first": {"head": 1, "row": 0, "key": 0, "channel": 0},
    }


def test_repeating_keys_over_the_group_is_said_to_copy_them_with_its_bytes() -> None:
    """(1, 2, n, 8) becomes (1, 4, n, 8): no strides merge the group into the heads."""
    for entry in audit(Knobs()):
        copies = {(op.operator, *op.roots): op.nbytes for op in entry.operations if op.form == "copy"}
        n = entry.place.call.extent
        assert copies[("Reshape", "key")] == copies[("Reshape", "value")] == 4 * (4 * n * 8)
        assert copies[("Concat", "key")] == 4 * (2 * n * 8)
        shared = [op.view for op in entry.operations if op.operator == "Expand"]
        assert [view.strides[2] for view in shared] == [0, 0]


def test_sites_of_one_form_are_of_one_kind_and_others_are_not() -> None:
    decoder = make_decoder(Knobs(layers=3))
    graph = ExportedGraph(Flow.of(decoder))
    first, second, third = (site_of(decoder, layer) for layer in range(3))
    assert graph.kind(first) == graph.kind(second) == graph.kind(third)
    assert graph.kind(first) != graph.kind(replace(first, kv_heads=1))
    other = make_decoder(Knobs(layers=1, product="matmul"))
    assert graph.kind(first) != ExportedGraph(Flow.of(other)).kind(site_of(other))


def test_the_definition_says_which_elements_a_row_reads() -> None:
    """Two rows behind one, four heads over two, written out by hand for one of them."""
    site = replace(site_of(make_decoder(Knobs())), head_dim=2, value_dim=3)
    reads = required_reads(site, Call(2, 1), (1, 1, 2, 3), [2, 3])
    a, j = 2, 1
    assert reads.query_HqnD[a, j].tolist() == [[10, 11]] * 3  # (head 2 of 4, row 1 of 2) starts at (2 * 2 + 1) * 2
    assert reads.key_HqnD[a, j].tolist() == [
        [2, 3],
        [6, 7],
        [10, 11],
    ]  # KV head 1 of 2: row t starts at (t * 2 + 1) * 2
    assert reads.mask_Hqn[a, j].tolist() == [3, 4, 5]
    assert reads.value_HqnV[a, j].tolist() == [[3, 4, 5], [9, 10, 11], [15, 16, 17]]
    assert reads.column_Hqn[a].tolist() == [[0, 1, NOTHING], [0, 1, 2]]
    assert reads.value_HqnV[a, 0, 2].tolist() == [NOTHING] * 3


@pytest.mark.parametrize(
    ("past", "queries", "exact", "ends"),
    [
        (4, 4, (), [8, 8, 8, 8]),
        (4, 4, (3,), [7, 7, 7, 8]),
        (6, 4, (3,), [7, 10, 10, 10]),
        (5, 2, (3,), [7, 7]),
        (4, 4, (0, 1, 2, 3), [5, 6, 7, 8]),
        (7, 4, (1, 3), [9, 9, 11, 11]),
    ],
)
def test_a_row_reads_up_to_the_next_extent_that_must_be_a_last_column(
    past: int, queries: int, exact: tuple[int, ...], ends: list[int]
) -> None:
    call = Call(queries, past)
    assert value_ends(call, [extent % 4 in exact for extent in range(call.extent + 1)]) == ends


@pytest.mark.parametrize(
    ("view", "code"),
    [
        (View((4, 4), (16, 4), 4, 4, Allocation("m", 64)), "VIEW_SPAN"),
        (View((4,), (4,), 2, 4, Allocation("m", 64)), "VIEW_ALIGNMENT"),
        (View((4, 3), (8, 4), 0, 4, Allocation("m", 64)), "VIEW_OVERLAP"),
        (View((4096, 4096), (8, 12), 0, 4, Allocation("m", 1 << 20)), "VIEW_OVERLAP"),  # too large to be shown
    ],
)
def test_a_view_that_is_not_legal_is_named(view: View, code: str) -> None:
    place = Place(site_of(make_decoder(Knobs())), Call(2, 3), "active")
    sound = View.contiguous("m", (4, 4), 4)
    operations = [Operation("Slice", name, "view", made, 0, ()) for name, made in (("good", sound), ("bad", view))]
    (problem,) = view_problems(place, operations)
    assert problem.code == code
    assert problem.evidence["tensor"] == "bad"


def test_a_mask_whose_values_depend_on_more_than_sizes_is_unknown() -> None:
    decoder = make_decoder(Knobs())
    rows = MaskRows(decoder.model, decoder.interface, "l0.qk")
    (problem,) = rows.problems(Place(site_of(decoder), Call(2, 3), "exported"))
    assert problem.code == "MASK_UNKNOWN"


def test_a_mask_of_a_padded_token_is_tried_and_is_the_same_alone() -> None:
    decoder = make_decoder(Knobs())
    rows = ExportedGraph(Flow.of(decoder)).mask(site_of(decoder))
    assert rows is not None
    whole, padded = rows.value(Call(2, 3)), rows.value(Call(2, 3), padded=1)
    assert whole is not None
    assert padded is not None
    assert np.argwhere(whole != padded)[:, -1].tolist() == [1, 1]  # column 1 of both rows
