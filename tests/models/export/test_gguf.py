"""A .gguf file gives the weights it holds, read once, and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import llama, torch
from tokenizers import Tokenizer

from qbpass.models.errors import ExportError
from qbpass.models.export.gguf import load_gguf
from qbpass.models.export.loaded import silent
from qbpass.models.export.tiny import byte_tokenizer

gguf = pytest.importorskip("gguf")

HEADS, KV_HEADS = 4, 2


def interleaved(weight: Any, heads: int) -> Any:
    """llama.cpp's order of rotary pairs: (x0, x1, ...) of two halves becomes neighbours."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


@pytest.fixture
def model() -> Any:
    return llama(2)


@pytest.fixture
def gguf_file(tmp_path: Path, model: Any) -> Path:
    """`model` in float32, as llama.cpp's converter writes a Llama with a byte-level tokenizer."""
    path, config = tmp_path / "model.gguf", model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    vocabulary = byte_tokenizer().get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    tokens[255] = "ab"  # the format wants a merge
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(256)
    writer.add_bos_token_id(256)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        weight = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            weight = interleaved(weight, HEADS if "q_proj" in name else KV_HEADS)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_its_weights_and_its_tokenizer_come_through(gguf_file: Path, model: Any, tmp_path: Path) -> None:
    loaded = load_gguf(gguf_file, "eager", silent)
    expected, actual = model.state_dict(), loaded.model.state_dict()
    assert expected.keys() == actual.keys()
    assert all(actual[name].dtype == torch.float32 for name in actual)
    assert [name for name in expected if actual[name].numpy().tobytes() != expected[name].numpy().tobytes()] == []
    out = tmp_path / "out"
    out.mkdir()
    loaded.write_tokenizer(out)
    assert Tokenizer.from_file(str(out / "tokenizer.json")).encode("hi").ids == byte_tokenizer().encode("hi").ids


def test_the_file_is_parsed_once(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    build = gguf.GGUFReader._build_tensors
    monkeypatch.setattr(gguf.GGUFReader, "_build_tensors", lambda *rest: (parsed.append(1), build(*rest))[1])
    reader = gguf.GGUFReader
    load_gguf(gguf_file, "eager", silent)
    assert len(parsed) == 1
    assert gguf.GGUFReader is reader


@pytest.mark.parametrize("content", [b"PK\x03\x04 not gguf", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 40])
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ExportError, match=r"bad\.gguf") as caught:
        load_gguf(path, "eager", silent)
    assert "\n" not in str(caught.value)


def test_a_truncated_file_is_refused(gguf_file: Path) -> None:
    gguf_file.write_bytes(gguf_file.read_bytes()[:-5000])
    with pytest.raises(ExportError):
        load_gguf(gguf_file, "eager", silent)
