"""Packed weights in the bundle: the same bits, one copy for every session, and nothing read that the file has not."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import onnx
import pytest
from chain_models import FORMS, exported
from decoder_blocks import SPEC, random_tokens, replayed

from qbpass.models.errors import BundleError, ModelFileError
from qbpass.models.external_data import (
    external_entry,
    external_tensors,
    packed_ends,
    packed_entries,
    set_external_entry,
)
from qbpass.models.freeze import freeze
from qbpass.models.graph_io import read_graph
from qbpass.models.loading import load_decoder
from qbpass.models.packed_weights import PACKED_FILE
from qbpass.models.session import open_session
from qbpass.models.weight_sources import WeightSources
from qbpass.rewrites.bundle import Bundle, check_recipe, open_bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.runtime.open_target import open_target
from qbpass.runtime.serial_target import SerialTarget


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("export"), FORMS["packed, rotary inside"])


@pytest.fixture(scope="module")
def packed(export: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("packed") / "bundle"
    return write_bundle(load_decoder(export), folder, "pq", SPEC, pack=True)[0]


def with_packs(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    return [tensor for tensor in external_tensors(model) if packed_entries(tensor)]


def test_the_bundle_s_graphs_name_one_file_that_holds_weights_and_packed_weights(packed: Bundle) -> None:
    assert sorted(packed.manifest.weights) == [PACKED_FILE]
    assert sorted(path.name for path in packed.folder.glob("*.data")) == [PACKED_FILE]
    rewritten = onnx.ModelProto.FromString(packed.graph())
    names = {tensor.name for tensor in with_packs(packed.reference.model)}
    assert len(names) > 3
    assert {tensor.name for tensor in with_packs(rewritten)} == names


def test_every_weight_is_the_one_that_was_frozen(packed: Bundle, export: Path, tmp_path: Path) -> None:
    plain = freeze(load_decoder(export), tmp_path, SPEC)

    def contents(model: onnx.ModelProto, weights: WeightSources) -> dict[str, bytes]:
        found = {}
        for tensor in external_tensors(model):
            location, offset, length = external_entry(tensor)
            found[tensor.name] = weights.file(location, tensor.name).read_bytes()[offset : offset + length]
        return found

    assert contents(packed.reference.model, packed.weights) == contents(plain.model, plain.weights)


def test_every_row_is_that_of_a_reference_that_packs_for_itself(packed: Bundle, export: Path, tmp_path: Path) -> None:
    plain = SerialTarget.from_frozen(freeze(load_decoder(export), tmp_path, SPEC), SPEC)
    serial = SerialTarget.from_bundle(packed, SPEC)
    tokens, rows = random_tokens(packed, 20), []
    for target in (plain, serial):
        target.start(20)
        rows.append([target.prefill(tokens[:8]).tobytes(), *(target.verify([t]).tobytes() for t in tokens[8:])])
    assert rows[0] == rows[1]
    count = replayed(packed, open_target(packed, SPEC))
    assert count.equal == count.rows > 0


def test_packed_weights_that_are_not_what_kernels_pack_are_refused(packed: Bundle, tmp_path: Path) -> None:
    """It also shows that the file is read: in a part of it that a session without packed weights never looks at."""
    shutil.copytree(packed.folder, tmp_path / "bundle")
    path = tmp_path / "bundle" / PACKED_FILE
    data = bytearray(path.read_bytes())
    for tensor in with_packs(packed.reference.model):
        data[max(packed_ends(tensor)) - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="packed"):
        open_session(tmp_path / "bundle" / "reference.onnx", SPEC)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_every_session_maps_the_file(packed: Bundle) -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(str(packed.folder / PACKED_FILE))

    before = mappings()
    first = open_session(packed.reference.path, SPEC, weights=packed.weights)
    one = mappings()
    second = open_session(packed.reference.path, SPEC, weights=packed.weights)
    assert before < one < mappings()
    del first, second


def test_packed_weights_that_were_changed_are_another_recipe(packed: Bundle, tmp_path: Path) -> None:
    shutil.copytree(packed.folder, tmp_path / "bundle")
    path = tmp_path / "bundle" / PACKED_FILE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match=r"packed\.data"):
        check_recipe(open_bundle(tmp_path / "bundle"), SPEC)


def test_a_packed_bundle_is_rewritten_again_over_the_same_file(packed: Bundle, tmp_path: Path) -> None:
    again = write_bundle(packed.reference, tmp_path / "again", "pq", SPEC)[0]
    assert again.manifest.weights[PACKED_FILE].folder == str(packed.folder)
    assert with_packs(again.reference.model)
    assert replayed(again, open_target(again, SPEC)).equal == 130


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("MatMul+1|0;99999999999;0", "truncated"),
        ("MatMul+1|0;-4;0", "no byte count"),
        ("MatMul+1|0", "no packed weight"),
    ],
)
def test_packed_entries_from_strangers_are_bounded(packed: Bundle, tmp_path: Path, entry: str, message: str) -> None:
    shutil.copytree(packed.folder, tmp_path / "bundle")
    model = onnx.load(tmp_path / "bundle" / "reference.onnx", load_external_data=False)
    tensor = with_packs(model)[0]
    set_external_entry(tensor, *external_entry(tensor), {"prepacked_0": entry})
    (tmp_path / "bundle" / "reference.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match=message):
        read_graph(tmp_path / "bundle" / "reference.onnx")
