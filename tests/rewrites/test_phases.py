"""Which masks a reference leaves room for follows from how it reads its prompt."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from decoder_blocks import SPEC

from qbpass.admission.admit import admit
from qbpass.models.errors import BundleError
from qbpass.models.loading import load_decoder
from qbpass.rewrites.bundle import Bundle, check_recipe, open_bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.manifest import MANIFEST_FILE
from qbpass.rewrites.phases import default_mask, mask_problem
from qbpass.rewrites.planner import RewriteRefused, make_plan
from qbpass.runtime.block_target import BlockTarget


@pytest.mark.parametrize("mask", range(16))
@pytest.mark.parametrize("prefill", ["whole", "chunks:16", "one"])
def test_a_mask_is_refused_where_it_rewrites_a_prefill_of_several_rows_a_call(mask: int, prefill: str) -> None:
    problem = mask_problem(mask, prefill)
    assert (problem is None) == (prefill == "one" or mask in (0, 2, 8, 10))
    if problem is not None:
        assert "\n" not in problem
        assert f"mask {mask} " in problem
        assert {"whole": "the whole prompt", "chunks:16": "16 prompt rows"}[prefill] in problem


@pytest.mark.parametrize(("prefill", "mask"), [("whole", 2), ("chunks:16", 2), ("one", 3)])
def test_unless_told_otherwise_a_layout_is_active_wherever_the_target_lets_it(prefill: str, mask: int) -> None:
    assert default_mask(prefill) == mask
    assert mask_problem(mask, prefill) is None


def test_a_refused_mask_is_refused_before_anything_is_tried(tiny_bundle: Bundle) -> None:
    with pytest.raises(RewriteRefused, match=r"prefills 16 prompt rows in one native call") as raised:
        make_plan(tiny_bundle.reference, admit(tiny_bundle.reference), "qb", SPEC, phase_mask=3, prefill="chunks:16")
    assert raised.value.trials == ()


@pytest.fixture(scope="module")
def one_by_one(tiny_eager: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundles") / "one"
    return write_bundle(load_decoder(tiny_eager), folder, "qb", SPEC, prefill="one")[0]


def test_a_bundle_says_how_its_reference_reads_a_prompt_and_runs_so(one_by_one: Bundle, tiny_bundle: Bundle) -> None:
    assert (one_by_one.manifest.recipe.prefill, one_by_one.manifest.phase_mask) == ("one", 3)
    assert (tiny_bundle.manifest.recipe.prefill, tiny_bundle.manifest.phase_mask) == ("whole", 2)
    assert check_recipe(one_by_one, SPEC) == one_by_one.manifest.recipe
    widths = []
    for bundle in (one_by_one, tiny_bundle):
        target = BlockTarget.from_bundle(bundle, SPEC)
        call, width = target._call, []
        target._call = lambda tokens, *rest, call=call, width=width: (width.append(len(tokens)), call(tokens, *rest))  # type: ignore[method-assign,misc]
        target.start(10)
        target.prefill(range(1, 10))
        widths.append(width)
    assert widths == [[4, 4, 1], [9]]


def test_a_process_that_reads_prompts_another_way_is_refused(one_by_one: Bundle) -> None:
    with pytest.raises(BundleError, match="prefill: bundle one, this process whole"):
        check_recipe(one_by_one, SPEC, prefill="whole")


def test_a_manifest_whose_mask_contradicts_its_recipe_is_refused(one_by_one: Bundle, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(one_by_one.folder, copy)
    manifest = json.loads((copy / MANIFEST_FILE).read_text())
    manifest["recipe"]["prefill"] = "whole"
    (copy / MANIFEST_FILE).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="contradicts itself") as raised:
        open_bundle(copy)
    assert "\n" not in str(raised.value)
