"""What can't be exported is refused in one line, and an export appears whole or not at all."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from tiny_models import llama, session, step, torch
from tokenizers import Tokenizer

from qbpass.models.errors import ExportError
from qbpass.models.export import export_source
from qbpass.models.export.tiny import byte_tokenizer


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "hf"
    llama(1).save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def refusal(source: str, out: Path, **options: object) -> str:
    with pytest.raises(ExportError) as caught:
        export_source(source, out, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_hugging_face_folder_is_exported_with_its_tokenizer(hf_folder: Path, tmp_path: Path) -> None:
    seen: list[str] = []
    out = export_source(str(hf_folder), tmp_path / "out", progress=lambda message, fraction: seen.append(message))
    assert {file.name for file in out.iterdir()} == {
        "model.onnx",
        "model.onnx.data",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
    }
    assert Tokenizer.from_file(str(out / "tokenizer.json")).get_vocab_size() == 257
    assert seen
    logits, _ = step(session(out), [1, 2, 3], {})
    with torch.no_grad():
        expected = llama(1)(torch.tensor([[1, 2, 3]])).logits.numpy()
    assert abs(logits - expected).max() < 2e-5


def test_a_builtin_is_copied_out_of_the_cache(tiny_eager: Path, tmp_path: Path) -> None:
    out = export_source("builtin:tiny", tmp_path / "deep" / "out")
    assert {file.name: file.read_bytes() for file in out.iterdir()} == {
        file.name: file.read_bytes() for file in tiny_eager.iterdir()
    }
    assert all(file.stat().st_nlink == 1 and not file.is_symlink() for file in out.iterdir())


def test_pickled_weights_are_refused(hf_folder: Path, tmp_path: Path) -> None:
    (hf_folder / "model.safetensors").rename(hf_folder / "pytorch_model.bin")
    assert "unpickles nothing" in refusal(str(hf_folder), tmp_path / "out")


def test_damaged_weights_are_refused(hf_folder: Path, tmp_path: Path) -> None:
    (hf_folder / "model.safetensors").write_bytes(b"\xff" * 64)
    assert "could not load" in refusal(str(hf_folder), tmp_path / "out")


def test_code_in_the_folder_is_never_run(hf_folder: Path, tmp_path: Path) -> None:
    config = json.loads((hf_folder / "config.json").read_text())
    config |= {"model_type": "stranger", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (hf_folder / "config.json").write_text(json.dumps(config))
    (hf_folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "could not load" in refusal(str(hf_folder), tmp_path / "out")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_without_what_it_needs_is_refused(hf_folder: Path, tmp_path: Path, missing: str) -> None:
    (hf_folder / missing).unlink()
    assert str(hf_folder) in refusal(str(hf_folder), tmp_path / "out")


@pytest.mark.parametrize("source", ["builtin:nothing", "no/such/folder", __file__])
def test_an_unknown_source_is_refused(source: str, tmp_path: Path) -> None:
    assert source in refusal(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("attention", "opset", "says"),
    [("flash", None, "eager, sdpa, onnx"), ("onnx", 22, "23"), ("sdpa", 23, "22"), ("eager", 17, "18")],
)
def test_a_form_that_cannot_be_written_is_refused(attention: str, opset: int | None, says: str, tmp_path: Path) -> None:
    assert says in refusal("builtin:tiny", tmp_path / "out", attention=attention, opset=opset)


def test_a_folder_with_files_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    assert str(tmp_path) in refusal("builtin:tiny", tmp_path)
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_failed_export_leaves_nothing(hf_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qbpass.models.export.folder.write_onnx", fail)
    place = tmp_path / "place"
    assert "No space left" in refusal(str(hf_folder), place / "out")
    assert list(place.iterdir()) == []


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    message = refusal("builtin:tiny", tmp_path / "out")
    assert "torch" in message
    assert "pip install 'qbpass[export]'" in message
