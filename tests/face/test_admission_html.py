"""The page of `qbpass admit --html`: one file, safe with any names, and drawings of the graph's real nodes."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import broken_models
import hostile_names
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qbpass.admission.admit import admit
from qbpass.admission.dataflow import Flow
from qbpass.admission.facts import AttentionFacts
from qbpass.admission.report import AdmissionReport, Diagnostic, SiteReport
from qbpass.models.decoder import Decoder
from qbpass.models.loading import load_graph
from qbpass.reports.admission_page import LISTED, ROWS, admission_page
from qbpass.reports.exported_site import exported_picture
from qbpass.reports.layered import lay_out
from qbpass.reports.looked_at import LookedAt
from qbpass.reports.node_index import NodeIndex
from qbpass.reports.picture import Box, Line, Picture
from qbpass.reports.plain import visible
from qbpass.reports.rewritten_site import rewritten_picture
from qbpass.reports.site_drawings import DRAWN
from qbpass.reports.site_picture import BOX_LIMIT, Tensors, node_key
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.plan import RewritePlan, SiteForm, SitePlan

TAGS = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "section", "footer", "article"),
    *("h1", "h2", "h3", "p", "b", "br", "a", "code", "span", "div", "ul", "li", "details", "summary"),
    *("table", "tr", "th", "td", "figure", "figcaption", "svg", "path", "g", "rect", "text"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "role", "aria-label"),
    *("viewBox", "width", "height", "x", "y", "rx", "d"),
}


def page_of(decoder: Decoder, report: AdmissionReport | None = None) -> str:
    return admission_page(report or admit(decoder), decoder, LookedAt.of(decoder, decoder.path))


@pytest.fixture
def model(tiny_eager: Path, tmp_path: Path) -> Path:
    """An export of one's own."""
    return Path(shutil.copytree(tiny_eager, tmp_path / "model"))


@pytest.fixture(scope="module")
def tiny(tiny_eager: Path) -> Decoder:
    return load_graph(tiny_eager, "ignored")


# A file of its own


class Elements(HTMLParser):
    """What a browser's parser would make of the text: tags with their attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def check_harmless(text: str) -> None:
    """Well-formed, of known tags and attributes only, with links that stay on the page."""
    root = ElementTree.fromstring(text)
    assert {element.tag for element in root.iter()} <= TAGS
    assert {name for element in root.iter() for name in element.attrib} <= ATTRIBUTES
    parsed = Elements(text).found
    assert Counter(tag for tag, _ in parsed) == Counter(element.tag for element in root.iter())
    links = [attributes["href"] or "" for _, attributes in parsed if "href" in attributes]
    ids = {attributes["id"] for _, attributes in parsed if "id" in attributes}
    assert all(link[0] == "#" and link[1:] in ids for link in links)
    css = "".join(element.text or "" for element in root.iter("style"))
    assert "url(" not in css
    assert "@import" not in css


@pytest.mark.parametrize("damage", [lambda folder: None, broken_models.capped_scores, broken_models.no_kv_inputs])
def test_the_page_needs_no_script_and_no_other_file(damage: Callable[[Path], None], model: Path) -> None:
    damage(model)
    check_harmless(page_of(load_graph(model, "ignored")))


@pytest.mark.parametrize("refused", [False, True])
def test_names_from_strangers_are_text_and_nothing_else(refused: bool, model: Path, tmp_path: Path) -> None:
    if refused:
        broken_models.capped_scores(model)
    names = hostile_names.rename_everything(model)
    evil = model.rename(tmp_path / "<svg onload=alert(1)> & 'co'")
    decoder = load_graph(evil, "ignored")
    report = admit(decoder)
    assert report.admitted == (not refused)
    text = page_of(decoder, report)
    check_harmless(text)
    root = ElementTree.fromstring(text)
    shown = "".join(root.itertext())
    assert sum(visible(name, 200) in shown for name in names) > 30
    assert "<svg onload=alert(1)> & 'co'" in (root.findtext(".//h1") or "")
    assert not set("\x1b\x07\u202e") & set(text)
    assert "49" not in [code.text for code in root.iter("code")]


def test_equal_graphs_give_equal_pages(tiny: Decoder, tiny_eager: Path) -> None:
    assert page_of(tiny) == page_of(load_graph(tiny_eager, "ignored"))


def test_a_page_stays_small_whatever_the_graph_names(tiny: Decoder) -> None:
    """600 layers of three kinds with long names; then 4,000 attentions no two of which are alike."""
    long = "x" * 50_000

    def site(layer: int, heads: int) -> SiteReport:
        name = f"attention.{layer}"
        told = Diagnostic("SOFTCAP", name, f"{layer} {long}", {"node": long, "inputs": [long] * 500, long: {long: 1}})
        facts = AttentionFacts(heads, 1, 8, 8, None, {"q": f"{long}{layer}"}, features={long: long})
        return SiteReport(name, long, layer, None, (told,), facts)

    layers = AdmissionReport("m", tuple(site(layer, layer % 3) for layer in range(600)))
    unlike = AdmissionReport("m", tuple(site(layer, layer) for layer in range(4000)))
    small, large = page_of(tiny, layers), page_of(tiny, unlike)
    assert len(small) < 600_000
    assert len(large) < 400_000
    assert f"And {4000 - ROWS} more kinds of site" in large
    assert LISTED < 600
    check_harmless(large)


# What it says


def test_the_page_says_what_the_report_says(model: Path) -> None:
    broken_models.capped_scores(model)
    decoder = load_graph(model, "ignored")
    root = ElementTree.fromstring(page_of(decoder))
    rows = [["".join(cell.itertext()).strip() for cell in row] for row in root.find(".//table").iter("tr")]  # type: ignore[union-attr]
    assert [row[0] for row in rows[1:]] == ["attention.0", "layers 1–2"]
    assert [row[-2:] for row in rows[1:]] == [["refused", "SOFTCAP"], ["admitted", ""]]
    article = root.find(".//article[@id='SOFTCAP']")
    assert article is not None
    told = "".join(article.itertext())
    assert "Why it matters." in told
    assert "capped" in [code.text for code in article.iter("code")]  # the name of the node that decides
    assert "refused: 2 of 3 attention sites are admitted" in "".join(root.find(".//header").itertext())  # type: ignore[union-attr]


def test_a_graph_that_holds_no_attention_has_a_page(model: Path) -> None:
    broken_models.no_kv_inputs(model)
    text = page_of(load_graph(model, "ignored"))
    assert "refused: no attention was found" in text
    assert "NO_KV_CACHE" in text
    assert "<svg" not in text


# Drawings: before


def picture_of(decoder: Decoder, report: SiteReport) -> Picture:
    flow = Flow.of(decoder)
    tensors = Tensors(lambda name: "" if flow.shape(name) is None else str(flow.shape(name)), flow.scalar)
    picture = exported_picture(report, NodeIndex(decoder.model), tensors)
    assert picture is not None
    return picture


def check_lines_are_edges(picture: Picture, model: onnx.ModelProto) -> None:
    """A line's tensor is made by its source and read by its target."""
    makers = {name: node for node in model.graph.node for name in node.output}
    nodes = {node_key(node): node for node in model.graph.node}
    for line in picture.lines:
        source, target = picture.box(line.source), picture.box(line.target)
        if target.role != "tensor":
            assert line.tensor in nodes[line.target].input
        if source.role != "tensor":
            assert line.tensor in nodes[line.source].output
        else:
            assert line.source == f"in {line.tensor}"
    assert {box.title for box in picture.boxes if box.key in nodes} <= {node.op_type for node in makers.values()}


def test_a_site_is_drawn_with_the_nodes_it_has(tiny: Decoder) -> None:
    report = admit(tiny).sites[1]
    assert report.site is not None
    picture = picture_of(tiny, report)
    check_lines_are_edges(picture, tiny.model)
    drawn = {box.key for box in picture.boxes}
    nodes = report.site.nodes
    assert {
        nodes.qk,
        *nodes.score_path,
        nodes.softmax,
        *nodes.prob_path,
        nodes.av,
        report.site.k,
        report.site.v,
    } <= drawn
    ends = {box.key.removeprefix("in ") for box in picture.boxes if box.key.startswith("in ")}
    site = report.site
    assert ends == {site.q, site.mask, site.past_key, site.past_value, site.new_key, site.new_value}
    left = {box.key.removeprefix("out ") for box in picture.boxes if box.key.startswith("out ")}
    assert left == {site.output, site.present_key, site.present_value}
    assert not any(box.marked for box in picture.boxes)


def test_every_line_of_a_site_tells_its_shape(tiny: Decoder) -> None:
    flow = Flow.of(tiny)
    picture = picture_of(tiny, admit(tiny).sites[0])
    assert all(line.label == str(flow.shape(line.tensor)) for line in picture.lines)


def test_the_node_that_the_first_diagnostic_names_is_marked(model: Path) -> None:
    broken_models.capped_scores(model)
    decoder = load_graph(model, "ignored")
    picture = picture_of(decoder, admit(decoder).sites[0])
    assert [box.title for box in picture.boxes if box.marked] == ["Tanh"]


GRAPH = """
<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
g (float[1, q, 8] x, float[1, 2, p, 4] past_k, float[1, 2, p, 4] past_v, float[1, 1, q, n] bias)
  => (float[1, q, 8] y, float[1, 2, n, 4] present_k, float[1, 2, n, 4] present_v, float peak)
<float[8, 8] w, float half = {0.5}>
{
  projected = MatMul (x, w)
  fused, present_k, present_v = com.microsoft.GroupQueryAttention <num_heads: int = 2> (projected, , , past_k, past_v)
  doubled = Mul (bias, half)
  scores = MatMul (fused, projected)
  biased = Add (scores, doubled)
  shares = Softmax <axis: int = -1> (biased)
  y = MatMul (shares, projected)
  peak = ReduceMax <keepdims: int = 0> (shares)
}
"""


def parsed_site(code: str, evidence: dict[str, Any], tensors: dict[str, str]) -> Picture | None:
    model = onnx.parser.parse_model(GRAPH)
    facts = AttentionFacts(None, None, None, None, None, tensors) if tensors else None
    report = SiteReport("attention.0", "any", 0, None, (Diagnostic(code, "attention.0", "", evidence),), facts)
    index = NodeIndex(model)
    return exported_picture(report, index, Tensors(lambda name: "", index.scalar))


def test_a_fused_operator_is_drawn_with_what_it_reads_and_gives() -> None:
    tensors = {"packed_qkv": "projected", "past_key": "past_k", "past_value": "past_v", "output": "fused"}
    tensors |= {"present_key": "present_k", "present_value": "present_v"}
    for known in (tensors, {}):
        picture = parsed_site("FUSED_ATTENTION", {"operator": "x", "inputs": ["past_k"], "node": "fused"}, known)
        assert picture is not None
        titles = Counter(box.title for box in picture.boxes if box.role != "tensor")
        assert titles == Counter(["GroupQueryAttention"])
        assert picture.box("fused").marked
        assert {line.source for line in picture.lines if line.target == "fused"} == {
            "in projected",
            "in past_k",
            "in past_v",
        }
        assert {line.tensor for line in picture.lines if line.source == "fused"} == {"fused", "present_k", "present_v"}


def test_it_is_the_first_diagnostic_whose_node_is_marked() -> None:
    model = onnx.parser.parse_model(GRAPH)
    told = tuple(Diagnostic("CODE", "a", "", {"node": node}) for node in ("shares", "scores"))
    facts = AttentionFacts(None, None, None, None, None, {"q": "fused", "v": "projected", "output": "y"})
    index = NodeIndex(model)
    picture = exported_picture(SiteReport("a", "any", 0, None, told, facts), index, Tensors(lambda n: "", index.scalar))
    assert picture is not None
    assert [box.key for box in picture.boxes if box.marked] == ["shares"]


def test_who_reads_an_inner_tensor_from_outside_is_drawn_beside_it() -> None:
    evidence = {"tensor": "shares", "readers": ["peak"]}
    picture = parsed_site("INTERIOR_READ_ELSEWHERE", evidence, {"q": "fused", "v": "projected", "output": "y"})
    assert picture is not None
    assert {box.title for box in picture.boxes if box.marked} == {"Softmax", "ReduceMax"}
    assert Line("shares", "peak", "shares") in picture.lines


def test_a_named_node_before_an_operand_is_tied_to_it() -> None:
    picture = parsed_site(
        "SLIDING_WINDOW", {"comparisons": {"doubled": []}}, {"q": "biased", "v": "projected", "output": "y"}
    )
    assert picture is not None
    assert [box.title for box in picture.boxes if box.marked] == ["Mul"]
    assert Line("doubled", "in biased", "doubled", indirect=True) in picture.lines


def test_what_is_added_to_the_scores_is_not_followed_beyond_its_name() -> None:
    picture = parsed_site("SCORE_OP", {}, {"q": "fused", "k": "projected", "v": "projected", "output": "y"})
    assert picture is not None
    assert picture.box("in doubled").title == "from elsewhere"
    assert not any(box.title == "Mul" for box in picture.boxes)


def test_evidence_that_names_no_node_is_no_drawing() -> None:
    assert parsed_site("KV_WITHOUT_SITE", {"past": "nothing", "rows": 3}, {}) is None
    assert parsed_site("KV_WITHOUT_SITE", {}, {"output": "nothing"}) is None


def test_a_drawing_has_a_bounded_number_of_boxes() -> None:
    chain = "\n".join(f"t{n + 1} = Add (t{n}, t{n})" for n in range(500))
    text = f'<ir_version: 9, opset_import: ["" : 18]>\ng (float[2] t0) => (float[2] t500) {{\n{chain}\n}}'
    index = NodeIndex(onnx.parser.parse_model(text))
    facts = AttentionFacts(None, None, None, None, None, {"q": "t0", "output": "t500"})
    picture = exported_picture(SiteReport("a", "any", 0, None, (), facts), index, Tensors(lambda n: "", index.scalar))
    assert picture is not None
    assert BOX_LIMIT <= len(picture.boxes) <= BOX_LIMIT + 4


# Drawings: after


def test_after_is_what_the_rewriter_emits_for_the_site(tiny_bundle: Bundle) -> None:
    """Against the whole decoder, rewritten with the same form; drawn with the same nodes and no others."""
    frozen = tiny_bundle.reference
    sites = [report.site for report in admit(frozen).sites if report.site is not None]
    plan = RewritePlan("qb", 2, 4, tuple(SitePlan(site, SiteForm()) for site in sites))
    whole = rewrite_graph(frozen, plan, "active")
    for site in sites:
        emitted = {node_key(node) for node in whole.graph.node if node.name.startswith(f"qbpass/{site.name}/")}
        emitted -= {node_key(node) for node in whole.graph.node if node.op_type == "Identity"}
        drawn = {box.key: box.title for box in rewritten_picture(site, Flow.of(frozen)).boxes if box.role != "tensor"}
        shared = {key for key in drawn if key.startswith("qbpass/call/row_mask/")}
        assert drawn.keys() - shared == emitted
        assert [drawn[key] for key in shared] == ["Unsqueeze"]
        assert {"FusedMatMul", "Softmax", "ScatterND"} <= set(drawn.values())


def test_after_tells_the_shapes_of_one_row_products(tiny_bundle: Bundle) -> None:
    """Rows for the scores, one-row products for the values, and the output as it was."""
    report = admit(tiny_bundle.reference).sites[0]
    site = report.site
    assert site is not None
    picture = rewritten_picture(site, Flow.of(tiny_bundle.reference))
    labels = {line.tensor.rpartition("active/")[2]: line.label for line in picture.lines}
    group = site.heads // site.kv_heads
    width = f"{group}*q" if group > 1 else "q"
    assert labels["qk"] == f"{site.kv_heads}, {width}, n"
    assert labels["scores"] == f"{site.kv_heads}, {group}, q, 1, n"
    assert labels["av"] == f"{site.kv_heads}, {group}, q, 1, {site.value_dim}"
    assert labels[site.output] == f"1, {site.heads}, q, {site.value_dim}"


def test_before_and_after_are_drawn_for_an_admitted_site_and_before_alone_for_a_refused_one(model: Path) -> None:
    broken_models.capped_scores(model)
    root = ElementTree.fromstring(page_of(load_graph(model, "ignored")))
    pairs = [element for element in root.iter("div") if element.attrib.get("class") == "pair"]
    assert [len(pair.findall("figure")) for pair in pairs] == [1, 2]
    assert len(pairs) <= DRAWN
    captions = ["".join(caption.itertext()) for caption in root.iter("figcaption")]
    assert "framed box" in captions[0]
    assert "No form was tried" in captions[2]


# Layout


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    """Any graph without cycles in which something flows to the last box."""
    count = draw(st.integers(2, 14))
    boxes = tuple(Box(f"b{n}", "title" * draw(st.integers(0, 4)), "", "layout") for n in range(count))
    lines = {(draw(st.integers(0, n - 1)), n) for n in range(1, count)}
    lines |= draw(st.sets(st.tuples(st.integers(0, count - 2), st.integers(1, count - 1)), max_size=12))
    kept = [Line(f"b{a}", f"b{b}", f"t{a}") for a, b in sorted(lines) if a < b]
    return Picture(boxes, tuple(kept), f"b{count - 1}")


@settings(max_examples=60, deadline=None)
@given(pictures())
def test_lines_lead_down_and_no_two_boxes_lie_on_each_other(picture: Picture) -> None:
    widths = {box.key: 20.0 + len(box.title) * 7 for box in picture.boxes}
    layout = lay_out(picture, widths, gap=10)
    for line, passes in zip(picture.lines, layout.passes, strict=True):
        rows = [row for _, row in passes]
        assert rows == list(range(layout.row[line.source], layout.row[line.target] + 1))
        assert layout.row[line.source] < layout.row[line.target]
        assert passes[0][0] == pytest.approx(layout.x[line.source])
        assert passes[-1][0] == pytest.approx(layout.x[line.target])
    for row in range(layout.rows):
        here = sorted((layout.x[key], widths[key]) for key, at in layout.row.items() if at == row)
        assert all(b - a >= (wa + wb) / 2 + 10 - 1e-6 for (a, wa), (b, wb) in pairwise(here))
        assert all(x - width / 2 >= -1e-6 and x + width / 2 <= layout.width + 1e-6 for x, width in here)


@pytest.mark.parametrize(
    ("order", "edges"),
    [
        # Two chains that meet at the end, in an order that crosses at every step.
        ("a0 b0 b1 a1 a2 b2 end", "b0>b1 a0>a1 a1>a2 b1>b2 b2>end a2>end"),
        # A chain beside a join with two operands: barycenters put it between them.
        (
            "old step new join last r0 r1 there end",
            "old>join step>last new>join join>r0 join>there last>r1 r0>end r1>end",
        ),
    ],
)
def test_lines_that_need_not_cross_do_not(order: str, edges: str) -> None:
    boxes = tuple(Box(key, "", "", "layout") for key in order.split())
    lines = tuple(Line(*edge.split(">"), edge) for edge in edges.split())
    layout = lay_out(Picture(boxes, lines, "end"), {box.key: 30.0 for box in boxes}, gap=10)
    steps = [(row, x, to_x) for passes in layout.passes for (x, row), (to_x, _) in pairwise(passes)]
    crossed = [
        (one, other)
        for one, other in combinations(steps, 2)
        if one[0] == other[0] and (one[1] - other[1]) * (one[2] - other[2]) < 0
    ]
    assert crossed == []


def test_shapes_in_a_drawing_do_not_lie_on_each_other(tiny: Decoder) -> None:
    root = ElementTree.fromstring(page_of(tiny))
    for svg in root.iter("svg"):
        left, _, width, _ = map(float, svg.attrib["viewBox"].split())
        labels = [
            (float(text.attrib["x"]), float(text.attrib["y"]), len(text.text or "") * 5.9)
            for text in svg.iter("text")
            if text.attrib["class"] == "shape"
        ]
        assert labels
        assert all(left <= x and x + wide <= left + width for x, _, wide in labels)
        for at, (x, y, wide) in enumerate(labels):
            for other_x, other_y, other_wide in labels[:at]:
                assert abs(y - other_y) >= 9.9 or x >= other_x + other_wide or other_x >= x + wide


def test_the_number_of_colours_is_that_of_roles(tiny: Decoder) -> None:
    """A box whose role the style sheet does not know would be black."""
    text = page_of(tiny)
    roles = set(re.findall(r'class="box (\w+)', text))
    assert roles >= {"tensor", "product", "softmax", "cache", "layout", "scores"}
    assert all(f"svg.site .{role} rect" in text for role in roles)
