"""What the exporter writes is read back: contract, companions, tokenizer, and the frozen graph's bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qbpass.models.decoder import Decoder
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec, open_session
from qbpass.models.tokenizer import TextCodec

SPEC = SessionSpec(threads=2)


@pytest.fixture(params=["tiny_eager", "tiny_sdpa"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return load_decoder(request.getfixturevalue(request.param))


def run(session: Any, decoder: Decoder, tokens: list[int], past: list[Any] | None = None) -> list[Any]:
    """Logits, then presents in the contract's order."""
    contract = decoder.contract
    pasts = [name for pair in contract.kv for name in (pair.past_key, pair.past_value)]
    if past is None:
        past = [np.zeros((1, p.kv_heads, 0, d), np.float32) for p in contract.kv for d in (p.key_dim, p.value_dim)]
    start = past[0].shape[2]
    inputs = {
        contract.input_ids: np.array([tokens], np.int64),
        contract.attention_mask: np.ones((1, start + len(tokens)), np.int64),
        contract.position_ids: np.arange(start, start + len(tokens), dtype=np.int64)[None],
        **dict(zip(pasts, past, strict=True)),
    }
    presents = [name for pair in contract.kv for name in (pair.present_key, pair.present_value)]
    return list(session.run([contract.logits, *presents], inputs))


def test_the_contract_pairs_each_past_with_its_own_present(decoder: Decoder) -> None:
    for pair in decoder.contract.kv:
        assert pair.present_key == pair.past_key.replace("past_key_values", "present")
        assert pair.present_value == pair.past_value.replace("past_key_values", "present")
        assert (pair.past_key, pair.past_value) == tuple(
            f"past_key_values.{pair.layer}.{kind}" for kind in ("key", "value")
        )


def test_the_frozen_export_gives_the_default_sessions_bytes(decoder: Decoder, tmp_path: Path) -> None:
    frozen = freeze(decoder, tmp_path / "frozen", SPEC)
    assert frozen.contract == decoder.contract
    answers = []
    for session in (
        open_session(frozen.path, SPEC, weights=frozen.weights),
        open_session(decoder.path, SPEC, optimize=True),
    ):
        first = run(session, decoder, [5, 6, 7, 8, 9])
        answers.append([array.tobytes() for array in (*first, *run(session, decoder, [10], first[1:]))])
    assert answers[0] == answers[1]


def test_the_tokenizer_beside_the_export_reads_and_writes_text(decoder: Decoder) -> None:
    codec = TextCodec(decoder.tokenizer_files)
    ids = codec.encode("two words")
    assert codec.decode(ids) == "two words"
    assert max(ids) < decoder.contract.vocab_size
    assert decoder.context_length is not None
    assert decoder.eos_token_ids
