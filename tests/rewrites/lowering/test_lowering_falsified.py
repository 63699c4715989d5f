"""A lowering that is not the fused kernel, bit for bit, is refused with a witness; so is a changed native node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from decoder_blocks import SPEC, replayed
from lowered_models import FORMS, WITHOUT_FLASH, lowered

from qbpass.admission.lowering import gqa
from qbpass.admission.lowering.lower import SPELLERS
from qbpass.rewrites import apply
from qbpass.rewrites.lowering import fused_layouts
from qbpass.rewrites.planner import RewriteRefused
from qbpass.runtime.block_target import BlockTarget


@pytest.fixture(autouse=True)
def _kernel_that_can_be_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WITHOUT_FLASH, "1")


def refused(folder: Path, form: str, layout: str = "qb") -> RewriteRefused:
    with pytest.raises(RewriteRefused) as caught:
        lowered(folder, FORMS[form], layout=layout)
    return caught.value


def test_a_kernel_with_another_schedule_is_not_its_lowering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GroupQueryAttention's flash kernel sums in blocks."""
    monkeypatch.delenv(WITHOUT_FLASH)
    refusal = refused(tmp_path, "gqa")
    assert "GroupQueryAttention, spelled out in separate products, is not GroupQueryAttention" in str(refusal)
    (trial,) = refusal.trials
    assert trial["verdict"] == "false"
    assert (trial["witness"]["queries"], trial["witness"]["row"]) == (1, 0)
    assert 0 < trial["witness"]["max_abs_difference"] < 1e-4


def test_what_is_falsified_is_evaluated_query_by_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WITHOUT_FLASH)
    bundle = lowered(tmp_path, FORMS["gqa"], layout="auto")
    assert (bundle.manifest.layout, len(bundle.manifest.chains), bundle.manifest.sites) == ("pq", 2, ())
    count = replayed(bundle, BlockTarget.from_bundle(bundle, SPEC))
    assert count.equal == count.rows


@pytest.mark.parametrize("form", ["onnx, joined outside, booleans", "mha, its own order", "gqa"])
def test_a_wrong_scale_is_found(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, spell in dict(SPELLERS).items():
        monkeypatch.setitem(SPELLERS, kind, with_scale(spell, 1.01))  # type: ignore[arg-type]
    assert "spelled out" in str(refused(tmp_path, form))


@pytest.mark.parametrize("form", ["onnx, joined outside, booleans", "mha, its own order"])
def test_where_the_lowering_is_false_the_fused_node_runs_row_by_row(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, spell in dict(SPELLERS).items():
        monkeypatch.setitem(SPELLERS, kind, with_scale(spell, 1.01))  # type: ignore[arg-type]
    bundle = lowered(tmp_path, FORMS[form], layout="auto")
    assert bundle.manifest.layout == "pq"
    count = replayed(bundle, BlockTarget.from_bundle(bundle, SPEC))
    assert count.equal == count.rows


# The bounds that each operator reads.
@pytest.mark.parametrize("bound", ["start", "extent"])
@pytest.mark.parametrize("form", ["onnx, joined outside, booleans", "mha, joined outside"])
def test_a_row_over_whole_keys_that_is_cut_wrongly_is_refused_by_address(
    bound: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shift(monkeypatch, bound)
    assert refused(tmp_path, form, layout="pq").problems


@pytest.mark.parametrize("bound", ["start", "past"])
@pytest.mark.parametrize("form", ["onnx, its own order", "mha, its own order"])
def test_a_row_that_is_cut_wrongly_is_refused_by_address(
    bound: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shift(monkeypatch, bound)
    assert refused(tmp_path, form, layout="pq").problems


def shift(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """The second row's bound is one too small."""
    sound = fused_layouts._row

    def shifted(context: Any, j: int) -> Any:
        row = sound(context, j)
        dims = context.dims
        moved = dims.builder.node("Sub", [getattr(row, bound), dims.builder.ints(1)], f"wrong{j}", dtype="int64")
        return replace(row, **{bound: moved}) if j == 1 else row

    monkeypatch.setattr(fused_layouts, "_row", shifted)


def with_scale(spell: Callable[..., Any], factor: float) -> Callable[..., Any]:
    def spelled(*given: Any) -> Any:
        core, operands = spell(*given)
        return replace(core, scale=core.scale * factor), operands

    return spelled


def test_keys_rotated_otherwise_are_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries and keys alike; the keys that the node appends show it, too."""
    rotated = gqa._rotated

    def interleaved(w: Any, *given: Any) -> str:
        name: str = rotated(w, *given)
        w.nodes[-1].attribute[0].i = 1
        assert w.nodes[-1].attribute[0].name == "interleaved"
        return name

    monkeypatch.setattr(gqa, "_rotated", interleaved)
    assert "spelled out" in str(refused(tmp_path, "gqa, packed, rotary inside"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": 0.7}, "other attributes than the exported one"),
        ({"operand": 0}, "in the place of"),
    ],
    ids=["another scale", "another operand"],
)
def test_a_native_node_that_is_not_the_exported_one_is_refused_by_address(
    change: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = apply.emit_fused_native

    def changed(builder: Any, context: Any) -> Any:
        result = sound(builder, context)
        node = next(node for node in builder.nodes if node.op == "Attention")
        if "scale" in change:
            node.attrs["scale"] = change["scale"]
        else:
            node.inputs[0] = builder.node("Identity", [node.inputs[0]], "other", dtype=node.inputs[0].dtype)
        return result

    monkeypatch.setattr(apply, "emit_fused_native", changed)
    refusal = refused(tmp_path, "onnx, joined outside, booleans")
    assert said in str(refusal)
    assert {problem.code for problem in refusal.problems} == {"UNTRACED"}


def test_a_native_node_over_a_cache_that_is_cut_wrongly_is_refused_by_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = apply.emit_fused_native

    def short(builder: Any, context: Any) -> Any:
        result = sound(builder, context)
        node = next(node for node in builder.nodes if node.op == "Attention")
        past = next(tensor for tensor in node.inputs if tensor.name.endswith("fused/past_key"))
        past.inputs[0].inputs[1] = builder.ints(1)  # Slice from the second row on
        return result

    monkeypatch.setattr(apply, "emit_fused_native", short)
    assert refused(tmp_path, "onnx, its own order").problems
