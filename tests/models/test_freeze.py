"""The frozen graph gives the default session's bytes, and freezing never damages what was there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_graphs import feeds, save, tiny_decoder

from qbpass.models.decoder import Decoder
from qbpass.models.digests import graph_digest
from qbpass.models.errors import ModelFileError, ProviderError
from qbpass.models.freeze import FROZEN_KEY, SOURCE_KEY, freeze, is_frozen
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec, open_session
from qbpass.models.weight_digests import weight_digests

SPEC = SessionSpec(threads=1)
LAYERS = 2


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    return load_decoder(save(tiny_decoder(LAYERS), tmp_path / "source", external=True))


def outputs(session: Any) -> list[bytes]:
    """Bytes of a prefill and of a continuation."""
    first = session.run(None, feeds(LAYERS, [3, 1, 4, 1, 5]))
    second = session.run(None, feeds(LAYERS, [9, 2], first[1:]))
    return [np.asarray(array).tobytes() for array in (*first, *second)]


@pytest.mark.parametrize("form", ["decomposed", "gqa", "onnx", "onnx_concat"])
def test_the_frozen_graph_gives_the_default_sessions_bytes(tmp_path: Path, form: str) -> None:
    decoder = load_decoder(save(tiny_decoder(LAYERS, form), tmp_path / "source", external=True))
    frozen = freeze(decoder, tmp_path / "frozen", SPEC)
    assert outputs(open_session(frozen.path, SPEC, weights=frozen.weights)) == outputs(
        open_session(decoder.path, SPEC, optimize=True)
    )
    assert frozen.contract == decoder.contract


def test_the_frozen_graph_says_what_it_was_made_from(decoder: Decoder, tmp_path: Path) -> None:
    frozen = freeze(decoder, tmp_path / "frozen", SPEC)
    notes = {entry.key: entry.value for entry in frozen.model.metadata_props}
    assert notes[SOURCE_KEY] == graph_digest(decoder.model)
    assert FROZEN_KEY in notes
    assert sorted(file.name for file in frozen.folder.iterdir()) == ["reference.onnx"]


def test_only_operator_sets_in_use_are_imported(decoder: Decoder, tmp_path: Path) -> None:
    frozen = freeze(decoder, tmp_path / "frozen", SPEC)
    used = {node.domain for node in frozen.model.graph.node} | {""}
    assert {entry.domain for entry in frozen.model.opset_import} == used


def test_a_frozen_decoder_is_not_frozen_twice(decoder: Decoder, tmp_path: Path) -> None:
    frozen = freeze(decoder, tmp_path / "frozen", SPEC)
    again = load_decoder(frozen.path, elsewhere=frozen.elsewhere)
    assert is_frozen(again.model)
    assert freeze(again, tmp_path / "second", SPEC) is again
    assert not (tmp_path / "second").exists()


def test_a_decoder_frozen_for_one_provider_is_not_passed_off_as_anothers(decoder: Decoder, tmp_path: Path) -> None:
    frozen = freeze(decoder, tmp_path / "frozen", SPEC)
    with pytest.raises(ProviderError, match="frozen for provider cpu, not for cuda"):
        freeze(frozen, tmp_path / "second", SessionSpec(provider="cuda", threads=1))


def test_what_belongs_to_the_decoder_stays_with_it(decoder: Decoder, tmp_path: Path) -> None:
    (decoder.folder / "config.json").write_text('{"n_positions": 64, "eos_token_id": 5}')
    decoder = load_decoder(decoder.path)
    frozen = freeze(decoder, tmp_path / "frozen", SPEC)
    assert (frozen.context_length, frozen.eos_token_ids) == (64, (5,))
    assert frozen.tokenizer_files == decoder.tokenizer_files


def test_a_freeze_that_fails_leaves_earlier_work_whole(
    decoder: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = freeze(decoder, tmp_path / "frozen", SPEC)
    before = {file.name: file.read_bytes() for file in frozen.folder.iterdir()}

    def breaks(_graph: Path, _spec: SessionSpec, to: Path, *_: Any, **__: Any) -> None:
        to.write_bytes(b"half a graph")
        raise ModelFileError("ONNX Runtime could not load the graph: out of memory")

    monkeypatch.setattr("qbpass.models.freeze.write_optimized", breaks)
    with pytest.raises(ModelFileError, match="out of memory"):
        freeze(decoder, tmp_path / "frozen", SPEC)
    assert {file.name: file.read_bytes() for file in frozen.folder.iterdir()} == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["frozen", "source"]


def test_freezing_again_replaces_the_files(decoder: Decoder, tmp_path: Path) -> None:
    first = freeze(decoder, tmp_path / "frozen", SPEC)
    other = load_decoder(save(tiny_decoder(LAYERS, "gqa"), tmp_path / "other"))
    second = freeze(other, tmp_path / "frozen", SPEC)
    assert graph_digest(second.model) != graph_digest(first.model)
    assert outputs(open_session(second.path, SPEC, weights=second.weights)) == outputs(
        open_session(other.path, SPEC, optimize=True)
    )


def test_a_full_disk_is_noticed_before_anything_is_written(
    decoder: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(ModelFileError, match="free some space"):
        freeze(decoder, tmp_path / "frozen", SPEC)
    assert not (tmp_path / "frozen").exists()


def test_digests_see_the_graph_and_the_weights_but_not_the_notes(decoder: Decoder, tmp_path: Path) -> None:
    digest = graph_digest(decoder.model)
    noted = load_decoder(decoder.path).model
    noted.metadata_props.add(key="author", value="somebody")
    noted.doc_string = noted.graph.node[0].doc_string = "a note"
    noted.producer_version = "2"
    assert graph_digest(noted) == digest
    noted.graph.node[0].op_type = "Neg"
    assert graph_digest(noted) != digest
    weights = weight_digests(decoder.model, decoder.weights)
    data = decoder.folder / "model.onnx.data"
    changed = bytearray(data.read_bytes())
    changed[0] ^= 1
    data.write_bytes(bytes(changed))
    assert weight_digests(decoder.model, decoder.weights).keys() == weights.keys()
    assert weight_digests(decoder.model, decoder.weights) != weights
