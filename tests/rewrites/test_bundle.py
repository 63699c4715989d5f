"""A bundle is whole or not there, says what it is, and is refused in one line where it is not what it says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from decoder_blocks import SPEC, block_target, plan_of

from qbpass.admission.admit import admit
from qbpass.models.decoder import Decoder
from qbpass.models.digests import file_digest
from qbpass.models.errors import BundleError, ModelFileError, QbpassError
from qbpass.models.external_data import external_entry, external_tensors, set_external_entry
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec, open_session
from qbpass.rewrites import bundle as bundle_module
from qbpass.rewrites import bundle_writer as writer_module
from qbpass.rewrites import candidates
from qbpass.rewrites.bundle import Bundle, check_recipe, open_bundle, plan_for
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.manifest import MANIFEST_FILE, WeightFile
from qbpass.rewrites.plan import Layout, RewritePlan
from qbpass.runtime.block_target import BlockTarget

#: What is called where layouts are planned; the rest is called where a bundle is written.
PLANNING = ("make_plan", "rewrite_graph")


@pytest.fixture
def copy(tiny_bundle: Bundle, tmp_path: Path) -> Path:
    """A bundle to damage."""
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle.folder, folder)
    return folder


@pytest.fixture
def quick(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """A frozen decoder whose plan is known: writing it takes no falsifier's run."""
    plans: dict[str, Callable[..., RewritePlan]] = {
        "make_plan": lambda frozen, report, layout, spec, **kw: plan_of(tiny_bundle, layout)
    }
    for name, stand_in in plans.items():
        monkeypatch.setattr(candidates if name in PLANNING else writer_module, name, stand_in)
    return tiny_bundle.reference


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    change(manifest)
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_written_bundle_opens_as_what_was_written(tiny_bundle: Bundle) -> None:
    again = open_bundle(tiny_bundle.folder)
    assert again.manifest == tiny_bundle.manifest
    assert again.reference.contract == tiny_bundle.reference.contract
    assert again.reference.eos_token_ids == tiny_bundle.reference.eos_token_ids
    assert again.extents == tiny_bundle.extents
    assert again.graph() == (tiny_bundle.folder / "decoder.onnx").read_bytes()
    assert {"tokenizer.json", "config.json"} <= again.reference.tokenizer_files.keys()
    assert check_recipe(again, SPEC) == again.manifest.recipe


@pytest.fixture
def portable(quick: Decoder, tmp_path: Path) -> Path:
    """A bundle that holds its weights, to damage."""
    return write_bundle(quick, tmp_path / "portable", "qb", SPEC, copy_weights=True)[0].folder


@pytest.fixture
def apart(tiny_bundle: Bundle, quick: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A bundle whose weights lie in a folder of the user's, and that folder, to damage."""
    model = tmp_path / "model"
    shutil.copytree(next(iter(tiny_bundle.reference.elsewhere.values())), model)
    return write_bundle(load_decoder(model), tmp_path / "apart", "qb", SPEC)[0].folder, model


def test_a_bundle_moves_with_its_folder(copy: Path) -> None:
    moved = copy.rename(copy.with_name("moved"))
    bundle = open_bundle(moved)
    assert check_recipe(bundle, SPEC) == bundle.manifest.recipe
    assert open_session(bundle.graph(), SPEC, weights=bundle.weights)


def test_a_bundle_holds_no_weight_that_the_model_has(tiny_bundle: Bundle, tiny_eager: Path) -> None:
    """The optimizer changes no weight of this export."""
    held = {path.name for path in tiny_bundle.folder.iterdir()} - {*tiny_bundle.manifest.tokenizer_files}
    assert held == {"decoder.onnx", "reference.onnx", MANIFEST_FILE}
    data = tiny_eager / "model.onnx.data"
    assert tiny_bundle.manifest.weights == {
        data.name: WeightFile(folder=str(tiny_eager.resolve()), bytes=data.stat().st_size)
    }
    assert tiny_bundle.manifest.recipe.weights == {data.name: file_digest(data)}


def test_a_bundle_with_its_own_weights_outlives_the_model(apart: tuple[Path, Path], tmp_path: Path) -> None:
    bundle, model = apart
    own = write_bundle(open_bundle(bundle).reference, tmp_path / "own", "qb", SPEC, copy_weights=True)[0].folder
    calls = [block_target(open_bundle(folder), plan_of(open_bundle(folder))) for folder in (bundle, own)]
    rows = [target.prefill([5, 6, 7]).tobytes() for target in calls if target.start(8) is None]
    assert rows[0] == rows[1]
    shutil.rmtree(model)
    opened = open_bundle(own.rename(tmp_path / "moved"))
    assert check_recipe(opened, SPEC) == opened.manifest.recipe
    again = BlockTarget.from_bundle(opened, SPEC)
    again.start(8)
    assert again.prefill([5, 6, 7]).tobytes() == rows[0]
    with pytest.raises(ModelFileError, match=r"model\.onnx\.data does not exist; .*--copy-weights") as raised:
        open_bundle(bundle)
    assert "\n" not in str(raised.value)


def test_a_model_that_moved_is_named_in_the_manifest(apart: tuple[Path, Path], tmp_path: Path) -> None:
    """By hand: what counts is the digest."""
    bundle, model = apart
    moved = model.rename(tmp_path / "moved")
    edit(bundle, lambda m: m["weights"]["model.onnx.data"].update(folder=str(moved)))
    opened = open_bundle(bundle)
    assert check_recipe(opened, SPEC) == opened.manifest.recipe
    assert opened.weights.elsewhere == {"model.onnx.data": moved}


def test_a_models_weights_that_are_of_another_size_are_refused_unread(apart: tuple[Path, Path]) -> None:
    bundle, model = apart
    with (model / "model.onnx.data").open("ab") as file:
        file.write(b"x")
    with pytest.raises(BundleError, match=r"model\.onnx\.data is not the file this bundle was made from") as raised:
        open_bundle(bundle)
    assert "\n" not in str(raised.value)


def test_a_models_weights_that_are_too_short_are_refused(apart: tuple[Path, Path]) -> None:
    bundle, model = apart
    data = model / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(QbpassError, match=r"is truncated|is not the file this bundle was made from") as raised:
        open_bundle(bundle)
    assert "\n" not in str(raised.value)


def test_a_models_weights_that_changed_are_another_recipe(apart: tuple[Path, Path]) -> None:
    bundle, model = apart
    data = bytearray((model / "model.onnx.data").read_bytes())
    data[1000] ^= 1
    (model / "model.onnx.data").write_bytes(bytes(data))
    with pytest.raises(BundleError, match=r"weights model\.onnx\.data: bundle .*, this process"):
        check_recipe(open_bundle(bundle), SPEC)


@pytest.mark.parametrize("folder", ["model", "../model", "a\0b"])
def test_a_manifest_that_names_no_absolute_folder_is_refused(copy: Path, folder: str) -> None:
    edit(copy, lambda m: m["weights"]["model.onnx.data"].update(folder=folder))
    with pytest.raises(BundleError, match="names no absolute folder for the weights"):
        open_bundle(copy)


def test_a_manifest_without_weight_files_has_them_all_in_its_folder(portable: Path) -> None:
    """As bundles had them before there was a choice."""
    edit(portable, lambda m: m.pop("weights"))
    bundle = open_bundle(portable)
    assert check_recipe(bundle, SPEC) == bundle.manifest.recipe


def test_a_full_disk_is_noticed_before_weights_are_copied(
    quick: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(BundleError, match="free some space, choose another folder, or leave --copy-weights out"):
        write_bundle(quick, tmp_path / "full", "qb", SPEC, copy_weights=True)
    assert list(tmp_path.iterdir()) == []


def test_writing_over_a_bundle_keeps_the_weights_that_lie_in_it(portable: Path, quick: Decoder) -> None:
    before = contents(portable)["model.onnx.data"]
    again = write_bundle(open_bundle(portable).reference, portable, "qb", SPEC)[0]
    assert contents(again.folder)["model.onnx.data"] == before
    assert again.manifest.weights["model.onnx.data"].folder is None


def test_a_weight_file_called_as_a_file_of_the_bundle_is_not_copied_over_it(portable: Path, quick: Decoder) -> None:
    reference = open_bundle(portable).reference
    for tensor in external_tensors(reference.model):
        set_external_entry(tensor, "decoder.onnx", *external_entry(tensor)[1:])
    (portable / "model.onnx.data").rename(portable / "decoder.onnx")
    with pytest.raises(BundleError, match=r"which has a file decoder\.onnx of its own"):
        write_bundle(reference, portable.with_name("other"), "qb", SPEC, copy_weights=True)


def test_a_frozen_decoder_is_bundled_without_touching_where_it_lies(
    tiny_bundle: Bundle, quick: Decoder, tmp_path: Path
) -> None:
    before = contents(tiny_bundle.folder)
    bundle, plan, report = write_bundle(quick, tmp_path / "again", "qb", SPEC)
    assert contents(tiny_bundle.folder) == before
    assert contents(bundle.folder)["reference.onnx"] == before["reference.onnx"]
    assert bundle.manifest.weights == tiny_bundle.manifest.weights
    assert plan.layout == "qb"
    assert report.admitted
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


def test_specialized_bundles_hold_one_graph_a_layout_and_no_guarded_one(quick: Decoder, tmp_path: Path) -> None:
    bundle = write_bundle(quick, tmp_path / "two", "qb", SPEC, emit="specialized")[0]
    assert bundle.graph("decoder.active.onnx") != bundle.graph("decoder.native.onnx")
    with pytest.raises(BundleError, match=r"has no decoder\.onnx \(it was written with --emit specialized\)"):
        bundle.graph()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / MANIFEST_FILE).unlink(), r"is not a bundle \(no qbpass.json\)"),
        (lambda f: (f / MANIFEST_FILE).write_text("{"), "is not a manifest this qbpass reads"),
        (lambda f: (f / MANIFEST_FILE).write_bytes(b"\xff\xfe"), "is not a manifest this qbpass reads"),
        (lambda f: edit(f, lambda m: m.update(surprise=1)), r"surprise: Extra inputs are not permitted"),
        (lambda f: edit(f, lambda m: m["recipe"].update(surprise=1)), r"recipe\.surprise: Extra inputs"),
        (lambda f: edit(f, lambda m: m.pop("layout")), "layout: Field required"),
        (lambda f: edit(f, lambda m: m.update(schema_version=2)), "schema_version"),
        (lambda f: edit(f, lambda m: m.update(phase_mask=16)), "phase_mask"),
        (lambda f: edit(f, lambda m: m.update(tokenizer_files=["../stranger.json"])), "tokenizer_files"),
        (lambda f: edit(f, lambda m: m.update(tokenizer_files=["/etc/hostname"])), "tokenizer_files"),
        (lambda f: edit(f, lambda m: m["interface"].update(vocab_size=9)), "is not the graph the manifest describes"),
        (lambda f: edit(f, lambda m: m["interface"].update(input_ids="x")), "is not the graph the manifest describes"),
        (lambda f: (f / "reference.onnx").unlink(), "reference.onnx"),
        (lambda f: (f / "reference.onnx").write_bytes(b"no model"), "reference.onnx"),
    ],
)
def test_a_damaged_bundle_is_refused_in_one_line(copy: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(copy)
    with pytest.raises(QbpassError, match=message) as raised:
        open_bundle(copy)
    assert "\n" not in str(raised.value)


def test_a_manifest_too_large_to_be_one_is_not_read(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "MAX_MANIFEST_BYTES", 100)
    with pytest.raises(BundleError, match="is larger than 100 bytes"):
        open_bundle(copy)


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_bytes(p.read_bytes() + b"\0")])
def test_a_rewritten_graph_that_is_not_the_manifests_is_not_run(copy: Path, damage: Callable[[Path], None]) -> None:
    bundle = open_bundle(copy)
    damage(copy / "decoder.onnx")
    with pytest.raises(BundleError, match=r"decoder\.onnx is missing or not the file the manifest names") as raised:
        bundle.graph()
    assert "\n" not in str(raised.value)


def test_other_threads_are_another_recipe(copy: Path) -> None:
    edit(copy, lambda m: m["recipe"].update(threads=3))
    with pytest.raises(BundleError, match="threads: bundle 3, this process 2") as raised:
        check_recipe(open_bundle(copy), SPEC)
    assert "\n" not in str(raised.value)
    assert check_recipe(open_bundle(copy), SessionSpec(threads=3)).threads == 3


def test_changed_weights_are_another_recipe(portable: Path) -> None:
    weights = portable / "model.onnx.data"
    data = bytearray(weights.read_bytes())
    data[1000] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(BundleError, match=r"weights model\.onnx\.data: bundle .*, this process"):
        check_recipe(open_bundle(portable), SPEC)


def test_many_differences_are_still_one_line(copy: Path) -> None:
    edit(copy, lambda m: m["recipe"].update(threads=3, processor="other", instruction_sets=["none"], ort_version="0.1"))
    with pytest.raises(BundleError, match=r"\(and 1 more\)") as raised:
        check_recipe(open_bundle(copy), SPEC)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("layout", ["qb", "pq"])
def test_another_layout_is_planned_for_the_bundles_phases_and_width(
    copy: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout
) -> None:
    edit(copy, lambda m: m.update(phase_mask=10))
    asked: dict[str, object] = {}
    monkeypatch.setattr(bundle_module, "make_plan", lambda *args, **options: asked.update(options))
    plan_for(open_bundle(copy), layout, SPEC)
    assert asked == {"phase_mask": 10, "prefill": "whole", "max_queries": 4, "force_repairs": []}


def test_a_manifest_with_too_few_value_segments_is_refused(copy: Path) -> None:
    edit(copy, lambda m: m.update(exact_extent_modulus=4, exact_extent_residues=[3], segments=1))
    with pytest.raises(BundleError, match="fewer value segments than its extents need"):
        open_bundle(copy)


class Crash(Exception):
    pass


@pytest.mark.parametrize("where", ["rewrite_graph", "_manifest", "admit", "make_plan"])
def test_a_crash_while_writing_leaves_the_earlier_bundle_whole_and_nothing_behind(
    copy: Path, quick: Decoder, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    before, beside = contents(copy), sorted(path.name for path in copy.parent.iterdir())

    def crash(*args: object, **kwargs: object) -> None:
        raise Crash

    monkeypatch.setattr(candidates if where in PLANNING else writer_module, where, crash)
    with pytest.raises(Crash):
        write_bundle(quick, copy, "qb", SPEC)
    assert contents(copy) == before
    assert sorted(path.name for path in copy.parent.iterdir()) == beside
    open_bundle(copy).graph()


def test_an_earlier_bundle_comes_back_where_the_new_one_can_not_be_moved_in(
    copy: Path, quick: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, replace = contents(copy), Path.replace

    def full_disk(self: Path, target: Path) -> Path:
        if (self / MANIFEST_FILE).is_file() and target == copy and self.name != "bundle":
            raise OSError("no space left")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_bundle(quick, copy, "qb", SPEC)
    assert contents(copy) == before
    assert [path.name for path in copy.parent.iterdir()] == ["bundle"]


def test_a_bundle_is_replaced_whole(copy: Path, quick: Decoder) -> None:
    (copy / "left over").write_text("from an older bundle")
    write_bundle(quick, copy, "pq", SPEC)
    assert open_bundle(copy).manifest.layout == "pq"
    assert not (copy / "left over").exists()
    assert [path.name for path in copy.parent.iterdir()] == ["bundle"]


def test_a_folder_with_something_else_in_it_is_left_alone(quick: Decoder, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(BundleError, match="is not empty and not a bundle: choose another folder"):
        write_bundle(quick, folder, "qb", SPEC)
    assert contents(folder) == {"cat.jpg": b"cat"}
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_an_empty_folder_may_be_filled(quick: Decoder, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    assert write_bundle(quick, folder, "qb", SPEC)[0].folder == folder


def test_the_report_of_the_bundles_reference_is_the_one_it_was_written_from(tiny_bundle: Bundle) -> None:
    report = admit(tiny_bundle.reference)
    assert [site.name for site in report.sites] == [site.name for site in tiny_bundle.manifest.sites]
