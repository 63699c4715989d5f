"""The rewritten graph holds no weight twice, says what each of its nodes is for, and leaves no copy of K or V."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import pytest
from decoder_blocks import plan_of, sites_of

from qbpass.models.errors import ContractError
from qbpass.models.weight_sources import weight_files
from qbpass.rewrites.apply import Emission, rewrite_graph
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.guard import PHASE_INPUT
from qbpass.rewrites.phases import Phase
from qbpass.rewrites.plan import Layout, RewritePlan

EMISSIONS: tuple[Emission, ...] = ("guarded", "active", "native")


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def bundle(request: pytest.FixtureRequest, tiny_bundle: Bundle, tiny_sdpa_bundle: Bundle) -> Bundle:
    return tiny_bundle if request.param == "eager" else tiny_sdpa_bundle


def external(model: onnx.ModelProto) -> dict[str, dict[str, str]]:
    """Each external initializer's reference."""
    return {
        entry.name: {pair.key: pair.value for pair in entry.external_data}
        for entry in model.graph.initializer
        if entry.data_location == onnx.TensorProto.EXTERNAL
    }


def branch(model: onnx.ModelProto, site: str, name: str) -> onnx.GraphProto:
    """then_branch (active) or else_branch (native) of a site's guard."""
    guard = next(node for node in model.graph.node if node.name == f"qbpass/{site}/guard")
    return next(attribute.g for attribute in guard.attribute if attribute.name == name)


def every_node(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from every_node(attribute.g)


def ancestors(graph: onnx.GraphProto, name: str) -> set[str]:
    """Every tensor of `graph` that `name` is computed from."""
    producers = {output: node for node in graph.node for output in node.output}
    found: set[str] = set()
    wanted = [name]
    while wanted:
        node = producers.get(wanted.pop())
        for source in node.input if node is not None else ():
            if source not in found:
                found.add(source)
                wanted.append(source)
    return found


@pytest.mark.parametrize("emission", EMISSIONS)
def test_weights_are_named_as_the_frozen_graph_names_them_and_not_held(bundle: Bundle, emission: Emission) -> None:
    frozen = bundle.reference.model
    model = rewrite_graph(bundle.reference, plan_of(bundle), emission)
    references = external(model)
    assert references
    assert all(external(frozen)[name] == reference for name, reference in references.items())
    for entry in model.graph.initializer:
        if entry.name in references:
            assert not entry.raw_data
            assert not entry.float_data
    weights = sum(path.stat().st_size for path in weight_files(frozen, bundle.weights).values())
    assert model.ByteSize() < weights / 2
    assert external(model).keys() == external(frozen).keys()


def test_branches_hold_small_constants_and_no_weights(bundle: Bundle) -> None:
    model = rewrite_graph(bundle.reference, plan_of(bundle))
    for entry in sites_of(bundle.reference):
        for name in ("then_branch", "else_branch"):
            held = branch(model, entry.name, name).initializer
            assert not any(constant.data_location == onnx.TensorProto.EXTERNAL for constant in held)
            assert all(constant.ByteSize() < 100 for constant in held)


def test_the_frozen_graph_is_left_as_it_was(bundle: Bundle) -> None:
    before = bundle.reference.model.SerializeToString(deterministic=True)
    rewrite_graph(bundle.reference, plan_of(bundle))
    assert bundle.reference.model.SerializeToString(deterministic=True) == before


def test_the_past_is_neither_taken_nor_concatenated_nor_returned(bundle: Bundle) -> None:
    model = rewrite_graph(bundle.reference, plan_of(bundle))
    names = {value.name for value in (*model.graph.input, *model.graph.output)}
    for pair in bundle.reference.contract.kv:
        gone = {pair.past_key, pair.past_value, pair.present_key, pair.present_value}
        assert not gone & names
        assert not gone & {name for node in every_node(model.graph) for name in (*node.input, *node.output)}
    assert PHASE_INPUT in names
    assert sum(node.op_type == "ScatterND" for node in model.graph.node) == 2 * len(bundle.reference.contract.kv)


def test_the_active_branch_repeats_and_copies_neither_keys_nor_values(bundle: Bundle) -> None:
    model = rewrite_graph(bundle.reference, plan_of(bundle))
    for entry in sites_of(bundle.reference):
        operators = [node.op_type for node in branch(model, entry.name, "then_branch").node]
        assert "Expand" not in operators
        assert "Transpose" not in operators
        assert "Expand" in [node.op_type for node in branch(model, entry.name, "else_branch").node]


def test_one_layout_needs_no_guard_and_no_phase(bundle: Bundle) -> None:
    for emission in ("active", "native"):
        model = rewrite_graph(bundle.reference, plan_of(bundle), emission)  # type: ignore[arg-type]
        assert not any(node.op_type == "If" for node in model.graph.node)
        assert PHASE_INPUT not in {value.name for value in model.graph.input}


def test_a_value_segment_is_read_only_behind_the_write_of_this_calls_rows(bundle: Bundle) -> None:
    plan = plan_of(bundle)
    if plan.segments == 1:
        pytest.skip("no row bears a mark of its tail on this machine: there is one segment")
    guarded, straight = (rewrite_graph(bundle.reference, plan, emission) for emission in ("guarded", "active"))
    for entry in sites_of(bundle.reference):
        source, written = f"cache.{entry.layer}.value.segment0", f"cache_out.{entry.layer}.value"
        # Guarded: read in a branch that also reads the written cache, and an If waits for all that its branches read.
        assert [node.op_type for node in _readers(guarded.graph.node, source)] == []
        active = branch(guarded, entry.name, "then_branch").node
        assert [node.op_type for node in _readers(active, source)] == ["Reshape"]
        assert _readers(active, written)
        # Straight-line: the read's own shape comes from the written cache.
        readers = _readers(straight.graph.node, source)
        assert [node.op_type for node in readers] == ["Reshape"]
        assert written in ancestors(straight.graph, readers[0].output[0])


def _readers(nodes: Iterable[onnx.NodeProto], name: str) -> list[onnx.NodeProto]:
    """Nodes that read the tensor's values: its shape alone tells nothing of what is in it."""
    return [node for node in nodes if name in node.input and node.op_type != "Shape"]


def test_the_unwritten_cache_is_read_by_the_update_alone(bundle: Bundle) -> None:
    model = rewrite_graph(bundle.reference, plan_of(bundle))
    for entry in sites_of(bundle.reference):
        for part in ("key", "value"):
            name = f"cache.{entry.layer}.{part}"
            readers = {node.op_type for node in every_node(model.graph) if name in node.input}
            assert readers - {"Shape"} == {"ScatterND"}


def tags(node: onnx.NodeProto) -> str:
    return " ".join(f"{entry.key}={entry.value}" for entry in node.metadata_props)


def test_nodes_say_their_site_layout_and_phases(tiny_bundle: Bundle) -> None:
    model = rewrite_graph(tiny_bundle.reference, plan_of(tiny_bundle))
    site = "attention.0"
    active = {tags(node) for node in branch(model, site, "then_branch").node}
    native = {tags(node) for node in branch(model, site, "else_branch").node}
    outer = {tags(n) for n in model.graph.node if n.name in (f"qbpass/{site}/guard", f"qbpass/{site}/update_key")}
    assert active == {f"qbpass.site={site} qbpass.layout=qb qbpass.phases=target_continuation"}
    assert native == {
        f"qbpass.site={site} qbpass.layout=mq qbpass.phases=target_prefill,draft_prefill,draft_continuation"
    }
    every = "qbpass.layout=any qbpass.phases=target_prefill,target_continuation,draft_prefill,draft_continuation"
    assert outer == {f"qbpass.site={site} {every}"}
    assert {tags(node) for node in model.graph.node if node.name.startswith("qbpass/call/")} == {every}
    assert not any(tags(node) for node in model.graph.node if not node.name.startswith("qbpass/"))


@pytest.mark.parametrize("emission", ["guarded", "active", "native"])
def test_every_emitted_node_says_its_layout_and_a_straight_line_graph_only_its_own_phases(
    tiny_bundle: Bundle, emission: Emission
) -> None:
    model = rewrite_graph(tiny_bundle.reference, plan_of(tiny_bundle, phase_mask=3), emission)
    emitted = [node for node in every_node(model.graph) if node.name.startswith("qbpass/")]
    phases = {entry.value for node in emitted for entry in node.metadata_props if entry.key == "qbpass.phases"}
    assert all("qbpass.layout=" in tags(node) and "qbpass.phases=" in tags(node) for node in emitted)
    target, draft = "target_prefill,target_continuation", "draft_prefill,draft_continuation"
    wanted = {"guarded": {target, draft, f"{target},{draft}"}, "active": {target}, "native": {draft}}
    assert phases == wanted[emission]


def test_node_metadata_survives_the_checker(tiny_bundle: Bundle) -> None:
    model = rewrite_graph(tiny_bundle.reference, plan_of(tiny_bundle))
    assert model.ir_version >= 10
    written = onnx.ModelProto.FromString(model.SerializeToString())
    assert tags(branch(written, "attention.1", "then_branch").node[0]).startswith("qbpass.site=attention.1 ")


QB_EAGER = """\
Reshape qk/rows
FusedMatMul qk
Reshape scores
Add
Softmax
Slice segment0/probs
Reshape segment0/av/values
FusedMatMul segment0/av
Slice segment1/probs
Reshape segment1/av/values
FusedMatMul segment1/av
Concat av/all_rows
Reshape output"""


def test_the_active_branch_of_a_tiny_site_reads(tiny_bundle: Bundle) -> None:
    """A snapshot of the form measured on x86: QK as rows, AV as a batch of rows in two segments."""
    plan = plan_of(tiny_bundle)
    if plan.segments != 2 or (plan.sites[0].form.qk, plan.sites[0].form.av) != ("rows", "batch"):
        pytest.skip("another form was measured on this machine")
    nodes = branch(rewrite_graph(tiny_bundle.reference, plan), "attention.0", "then_branch").node
    assert sorted(_lines(nodes)) == sorted(QB_EAGER.splitlines())
    assert _in_an_order_that_respects(nodes, QB_EAGER.splitlines())


def _lines(nodes: list[onnx.NodeProto]) -> list[str]:
    """Operator and name below the branch; replayed nodes keep the export's own names, which are not claimed here."""
    lines = []
    for node in nodes:
        name = node.name.removeprefix("qbpass/attention.0/active/")
        own = name if node.op_type in ("Reshape", "FusedMatMul", "Slice", "Concat") else ""
        lines.append(f"{node.op_type} {own}".strip())
    return lines


def _in_an_order_that_respects(nodes: list[onnx.NodeProto], wanted: list[str]) -> bool:
    """Whether each segment's nodes, and the nodes before and behind them, come in the order written above.

    Value views depend on nothing in the branch: they may stand anywhere before their product.
    """
    lines, wanted = ([line for line in part if "av/values" not in line] for part in (_lines(nodes), wanted))
    for part in ("segment0", "segment1"):
        chain = [line for line in wanted if "segment" not in line or part in line]
        if [line for line in lines if line in chain] != chain:
            return False
    return True


def test_every_query_has_a_subgraph_of_its_own_under_pq(tiny_bundle: Bundle) -> None:
    model = rewrite_graph(tiny_bundle.reference, plan_of(tiny_bundle, "pq"))
    names = [node.name for node in branch(model, "attention.0", "then_branch").node]
    for query in range(4):
        assert sum(f"/query{query}/" in name for name in names) >= 5
    assert not any("/query4/" in name for name in names)


@pytest.mark.parametrize("layout", ["qb", "pq"])
def test_the_same_plan_gives_the_same_bytes(tiny_bundle: Bundle, layout: Layout) -> None:
    plan = plan_of(tiny_bundle, layout)
    first, second = (rewrite_graph(tiny_bundle.reference, plan).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_the_checker_accepts_the_guarded_graph(bundle: Bundle, tmp_path: Path) -> None:
    model = rewrite_graph(bundle.reference, plan_of(bundle))
    path = tmp_path / "decoder.onnx"
    path.write_bytes(model.SerializeToString())
    for location, weights in weight_files(model, bundle.weights).items():
        (tmp_path / location).write_bytes(weights.read_bytes())
    onnx.checker.check_model(str(path))
    assert path.stat().st_size == model.ByteSize()


def test_a_plan_that_leaves_out_a_layer_is_refused(tiny_bundle: Bundle) -> None:
    plan = plan_of(tiny_bundle)
    partial = RewritePlan(plan.layout, plan.phase_mask, plan.max_queries, plan.sites[:-1])
    with pytest.raises(ContractError, match=r"leaves out layer\(s\) \[2\]"):
        rewrite_graph(tiny_bundle.reference, partial)


def test_a_plan_is_read_in_one_line_a_site(tiny_bundle: Bundle) -> None:
    text = plan_of(tiny_bundle, phase_mask=Phase.TARGET_PREFILL | Phase.TARGET_CONTINUATION).text().splitlines()
    assert text[0].startswith("layout qb, active in: TARGET_PREFILL, TARGET_CONTINUATION; up to 4 queries; ")
    assert [line.split(":")[0].strip() for line in text[1:]] == ["attention.0", "attention.1", "attention.2"]
    assert "heads 4/2, d 16" in text[1]
