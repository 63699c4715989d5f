"""A float16 graph, or a float16 cache, is rewritten in the types that its provider computes in, every rounding kept."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from decoder_blocks import SPEC, block_target, plan_of, replayed, serial_target, sites_of
from half_graphs import converted, with_half_cache
from onnx import TensorProto

from qbpass.admission.admit import admit
from qbpass.admission.calls.call import Call
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.models.recipe import recipe_of
from qbpass.rewrites import apply, planner
from qbpass.rewrites.address_audit import audit_site
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.cache_steps import move_steps
from qbpass.rewrites.falsify import SiteFalsifier
from qbpass.rewrites.head import LOGITS_FROM, find_head
from qbpass.rewrites.kept_casts import INSERTED
from qbpass.rewrites.plan import Layout
from qbpass.runtime.block_target import BlockTarget

GRAPHS = ["eager converted", "sdpa converted, float32 outside", "eager with a float16 cache"]


@pytest.fixture(scope="module", params=GRAPHS)
def export(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("half")
    exports = {name: request.getfixturevalue(f"tiny_{name}") for name in ("eager", "sdpa")}
    if "cache" in request.param:
        return with_half_cache(exports["eager"], folder, attended=True)
    outside = "outside" in request.param
    return converted(exports["sdpa" if outside else "eager"], folder, keep_io_types=outside)


@pytest.fixture(scope="module", params=["qb", "pq"])
def bundle(request: pytest.FixtureRequest, export: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "SiteFalsifier", partial(SiteFalsifier, pasts=range(24)))
        return write_bundle(load_decoder(export), tmp_path_factory.mktemp("bundles") / "half", request.param, SPEC)[0]


def test_every_row_is_the_serial_one(bundle: Bundle) -> None:
    plan = plan_of(bundle, bundle.manifest.layout)
    count = replayed(bundle, block_target(bundle, plan))
    assert count.equal == count.rows == 13 * (1 + 2 + 3 + 4)


def test_the_cache_holds_what_the_products_read(bundle: Bundle) -> None:
    """A cast behind the cache is made once, of the new rows: none is left on the way to a product."""
    model = rewrite_graph(bundle.reference, plan_of(bundle, bundle.manifest.layout))
    caches = [value for value in model.graph.input if value.name.startswith("cache.")]
    assert caches
    assert {value.type.tensor_type.elem_type for value in caches} == {TensorProto.FLOAT}
    for entry in sites_of(bundle.reference):
        assert [step.to for step in entry.key_steps if step.to] == [TensorProto.FLOAT]
        assert [step.to for step in entry.value_steps if step.to] == [TensorProto.FLOAT]
        guard = next(node for node in model.graph.node if node.name == f"qbpass/{entry.name}/guard")
        branch = next(attribute.g for attribute in guard.attribute if attribute.name == "then_branch")
        read = {name for node in branch.node if node.op_type == "Cast" for name in node.input}
        assert not {name for name in read if name.startswith("cache_out.")}


def test_a_cast_that_rounds_has_no_name_that_onnxruntime_removes_it_by(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime drops its own narrowing casts in front of widening ones, with optimization off, too."""
    plan = plan_of(bundle, bundle.manifest.layout)
    named = [node for node in bundle.reference.model.graph.node if node.name.startswith(INSERTED)]
    if not named:
        pytest.skip("a float32 graph: ONNX Runtime inserts no casts")
    model = rewrite_graph(bundle.reference, plan)
    assert not [node for node in model.graph.node if node.name.startswith(INSERTED) and node.op_type == "Cast"]
    monkeypatch.setattr(apply, "keep_casts", lambda graph: None)
    count = replayed(bundle, block_target(bundle, plan, rewrite_graph(bundle.reference, plan)))
    assert count.equal < count.rows


def _as_cached_by(site: Any, **changes: Any) -> Any:
    """move_steps for another site than the one that was admitted."""

    def moved(builder: Any, _: Any, new: Any, producers: Any, tensors: Any) -> Any:
        return move_steps(builder, replace(site, **changes), new, producers, tensors)

    return moved


def test_a_cast_on_the_other_side_of_a_factor_is_caught(
    tiny_sdpa: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are widened, then multiplied: a factor taken in float16 would be rounded."""
    export = converted(tiny_sdpa, tmp_path, keep_io_types=False)
    frozen = freeze(load_decoder(export), tmp_path / "frozen", SPEC)
    site = sites_of(frozen)[0]
    assert [bool(step.to) for step in site.key_steps] == [True, False]
    plan = apply.RewritePlan("qb", 2, 4, tuple(apply.SitePlan(s, planner.SiteForm()) for s in sites_of(frozen)))
    calls = (Call(2, 3),)
    assert audit_site(frozen, plan, site, calls).problems == ()
    turned = _as_cached_by(site, key_steps=site.key_steps[::-1])
    monkeypatch.setattr(apply, "move_steps", turned)
    found = {problem.code for problem in audit_site(frozen, plan, site, calls).problems}
    assert "CACHE_ROWS" in found


@pytest.mark.parametrize("layout", ["qb", "pq"])
def test_a_cast_left_out_between_the_products_is_caught(
    tiny_sdpa: Path, tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = converted(tiny_sdpa, tmp_path, keep_io_types=False)
    frozen = freeze(load_decoder(export), tmp_path / "frozen", SPEC)
    site = sites_of(frozen)[0]
    cast = [name for name in site.nodes.prob_path if _operator(frozen.model, name) == "Cast"]
    assert cast
    plan = apply.RewritePlan(layout, 2, 4, tuple(apply.SitePlan(s, planner.SiteForm()) for s in sites_of(frozen)))
    replay = apply.NodeBuilder.replay

    def without(self: Any, nodes: Any, tensors: Any) -> None:
        for node in nodes:
            if node.outputs[0].name in cast:
                tensors[node.outputs[0].name] = tensors[node.inputs[0].name]
            else:
                replay(self, [node], tensors)

    monkeypatch.setattr(apply.NodeBuilder, "replay", without)
    found = audit_site(frozen, plan, site, (Call(2, 3),))
    assert "STEPS" in {problem.code for problem in found.problems}


def _operator(model: onnx.ModelProto, name: str) -> str:
    return str(next(node.op_type for node in model.graph.node if name in node.output))


def test_rows_that_are_rounded_only_where_they_are_given_out_are_refused(tiny_eager: Path, tmp_path: Path) -> None:
    """Attention would read this call's rows unrounded, and the same rows rounded in the next."""
    export = with_half_cache(tiny_eager, tmp_path, attended=False)
    report = admit(freeze(load_decoder(export), tmp_path / "frozen", SPEC))
    assert {d.code for site in report.sites for d in site.diagnostics} == {"CONCAT_FORM", "PRESENT_READ_ELSEWHERE"}


def test_logits_have_the_type_that_the_export_gives(bundle: Bundle) -> None:
    target = block_target(bundle, plan_of(bundle, bundle.manifest.layout))
    target.start(8)
    logits = target.prefill([1, 2, 3])
    declared = next(v for v in bundle.reference.model.graph.output if v.name == bundle.reference.contract.logits)
    assert logits.dtype == onnx.helper.tensor_dtype_to_np_dtype(declared.type.tensor_type.elem_type)
    assert np.isfinite(logits).all()
    assert recipe_of(bundle.reference, SPEC) == bundle.manifest.recipe


def test_a_prompts_last_row_of_logits_is_computed_alone_behind_a_cast(bundle: Bundle) -> None:
    assert find_head(bundle.reference) is not None
    assert "rows" in bundle.manifest.head_evidence or bundle.manifest.head_evidence["verdict"] == "false"
    if bundle.manifest.head == "all":
        pytest.skip("one row alone is not the row among many on this machine")
    model = onnx.load_from_string(bundle.graph())
    makers = {output: node for node in model.graph.node for output in node.output}
    head = makers[bundle.reference.contract.logits]
    while head.op_type == "Cast":
        head = makers[head.input[0]]
    assert LOGITS_FROM in makers[head.input[0]].input
    target, reference = BlockTarget.from_bundle(bundle, SPEC), serial_target(bundle)
    rows = []
    for each in (target, reference):
        each.start(12)
        rows.append(each.prefill([1, 2, 3, 4, 5]))
    assert rows[0].tobytes() == rows[1].tobytes()
