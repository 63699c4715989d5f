"""A fused attention spelled out, and rewritten as QB, gives the rows that the fused node gives one at a time."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from decoder_blocks import SPEC, replayed
from lowered_models import FORMS, WITHOUT_FLASH, lowered

from qbpass.admission import admit
from qbpass.models.dataflow import attribute
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.block_target import BlockTarget

EVERY_ROW = 13 * (1 + 2 + 3 + 4)


@pytest.fixture(autouse=True)
def _kernel_that_can_be_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WITHOUT_FLASH, "1")


@pytest.mark.parametrize("form", FORMS)
def test_every_row_is_the_fused_nodes(form: str, tmp_path: Path) -> None:
    bundle = lowered(tmp_path, FORMS[form])
    assert bundle.manifest.layout == "qb"
    count = replayed(bundle, BlockTarget.from_bundle(bundle, SPEC))
    assert count.equal == count.rows == EVERY_ROW


@pytest.mark.parametrize("form", ["onnx, joined outside, booleans", "gqa, packed, rotary inside"])
def test_straight_line_graphs_give_the_same_rows(form: str, tmp_path: Path) -> None:
    bundle = lowered(tmp_path, FORMS[form], emit="specialized")
    count = replayed(bundle, BlockTarget.from_bundle(bundle, SPEC))
    assert count.equal == count.rows == EVERY_ROW


@pytest.mark.parametrize("form", [form for form in FORMS if not form.startswith("gqa")])
def test_the_fused_node_one_row_at_a_time_gives_the_same_rows(form: str, tmp_path: Path) -> None:
    bundle = lowered(tmp_path, FORMS[form], layout="pq")
    operator = {"onnx": "Attention", "mha": "MultiHeadAttention"}[form.split(",")[0]]
    native, active = branches(bundle, operator)
    assert (len(native), len(active)) == (2, 2 * bundle.manifest.max_queries)
    assert "one_row" not in bundle.manifest.sites[0].evidence["lowering"]  # nothing of what is spelled out is run
    count = replayed(bundle, BlockTarget.from_bundle(bundle, SPEC))
    assert count.equal == count.rows == EVERY_ROW


def test_the_native_branch_is_the_frozen_graphs_own_node(tmp_path: Path) -> None:
    bundle = lowered(tmp_path, FORMS["gqa, packed, rotary inside"])
    frozen = [node for node in bundle.reference.model.graph.node if node.op_type == "GroupQueryAttention"]
    native, active = branches(bundle, "GroupQueryAttention")
    assert (len(frozen), len(native), active) == (2, 2, [])
    for mine, own in zip(native, frozen, strict=True):
        assert attributes(mine) == attributes(own)
        kept = [place for place in range(len(own.input)) if place not in (3, 4)]  # the past is qbpass's own cache
        assert [mine.input[place] for place in kept] == [own.input[place] for place in kept]


def branches(bundle: Bundle, operator: str) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """The operator's nodes in native and in active branches; none may lie outside a guard."""
    graph = onnx.load(bundle.folder / "decoder.onnx", load_external_data=False).graph
    guards = [node for node in graph.node if node.op_type == "If"]
    assert all(node.op_type != operator for node in graph.node)
    native, active = (
        [node for guard in guards for node in attribute(guard, branch).node if node.op_type == operator]
        for branch in ("else_branch", "then_branch")
    )
    return native, active


def attributes(node: onnx.NodeProto) -> dict[str, bytes]:
    return {entry.name: entry.SerializeToString() for entry in node.attribute}


SPELLED = """\
q: lowered/attention.0/q
k: present.0.key
v: present.0.value
new_key: lowered/attention.0/k
new_value: lowered/attention.0/v
mask: lowered/call/mask/causal
output: lowered/attention.0/mixed
key_path: lowered/attention.0/key/apart lowered/attention.0/key/wide lowered/attention.0/key/repeated
qk: lowered/attention.0/scores
score_path: lowered/attention.0/masked
softmax: lowered/attention.0/weights
av: lowered/attention.0/mixed
"""


def test_what_a_lowered_site_is_made_of(tmp_path: Path) -> None:
    bundle = lowered(tmp_path, FORMS["gqa, packed, rotary inside"])
    report = admit(bundle.reference).sites[0]
    site = report.lowered
    assert site is not None
    assert (report.site, site.kind, site.heads, site.kv_heads, site.scale) == (None, "gqa", 4, 2, 0.25)
    parts = {name: getattr(site, name) for name in ("q", "k", "v", "new_key", "new_value", "mask", "output")}
    parts |= {name: getattr(site.nodes, name) for name in ("key_path", "qk", "score_path", "softmax", "av")}
    dump = [f"{name}: {part if isinstance(part, str) else ' '.join(part)}" for name, part in parts.items()]
    assert "\n".join(dump) + "\n" == SPELLED


def test_a_bundle_tells_what_its_lowering_was_tried_on(tmp_path: Path) -> None:
    bundle = lowered(tmp_path, FORMS["mha, its own order"])
    for site in bundle.manifest.sites:
        told = site.evidence["lowering"]
        assert told["operator"] == "MultiHeadAttention"
        for trial in ("one_row", "native"):
            assert (told[trial]["verdict"], told[trial]["rows_differing"]) == ("unknown", 0)
            assert told[trial]["rows"] > 50


def test_an_address_audit_says_how_far_it_looked_into_a_fused_node(tmp_path: Path) -> None:
    bundle = lowered(tmp_path, FORMS["mha, joined outside"])
    addresses = bundle.manifest.sites[0].evidence["addresses"]
    assert addresses["problems"] == []
    assert addresses["fused"] == "followed up to the operands of MultiHeadAttention, and as spelled out inside"
    copied = addresses["graphs"]["native"]["copies"]
    assert not any(copy.startswith(("Expand", "Unsqueeze")) for copy in copied)  # inside, it repeats nothing
