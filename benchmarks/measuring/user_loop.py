"""Greedy decoding as a user of plain ONNX Runtime would write it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from qbpass.models.contract import DecoderContract

_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def plain_session(
    graph: Path | bytes, threads: int, *, frozen: bool, folder: Path | None = None
) -> ort.InferenceSession:
    """A CPU session with default options but for its threads. frozen: the graph went through the optimizer already.

    folder: where the external weights of serialized graph lie.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if frozen:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    graph = graph if isinstance(graph, bytes) else str(graph)
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def numpy_loop(
    session: ort.InferenceSession, contract: DecoderContract, prompt: Sequence[int], count: int
) -> tuple[list[int], list[np.ndarray]]:
    """`count` greedy tokens, and the row of logits each was chosen from, (1, vocabulary)."""
    pairs = _pairs(contract)
    outputs = [contract.logits, *(present for _past, present in pairs)]
    past = {name: empty for (name, _present), empty in zip(pairs, _empty(session, contract), strict=True)}
    fed, length = list(prompt), 0
    tokens: list[int] = []
    rows: list[np.ndarray] = []
    while len(tokens) < count:
        logits, *present = session.run(outputs, {**_token_feeds(contract, fed, length), **past})
        past = {name: array for (name, _present), array in zip(pairs, present, strict=True)}
        length += len(fed)
        rows.append(logits[0, -1:])
        fed = [int(rows[-1].argmax())]
        tokens += fed
    return tokens, rows


def bound_loop(
    session: ort.InferenceSession, contract: DecoderContract, prompt: Sequence[int], count: int
) -> tuple[list[int], list[np.ndarray]]:
    """The same, with present outputs passed on as OrtValues."""
    pairs = _pairs(contract)
    past = [ort.OrtValue.ortvalue_from_numpy(empty) for empty in _empty(session, contract)]
    fed, length = list(prompt), 0
    tokens: list[int] = []
    rows: list[np.ndarray] = []
    while len(tokens) < count:
        binding = session.io_binding()
        for name, array in _token_feeds(contract, fed, length).items():
            binding.bind_cpu_input(name, array)
        binding.bind_output(contract.logits)
        for (name, present), value in zip(pairs, past, strict=True):
            binding.bind_ortvalue_input(name, value)
            binding.bind_output(present)
        session.run_with_iobinding(binding)
        logits, *past = binding.get_outputs()
        length += len(fed)
        rows.append(logits.numpy()[0, -1:])
        fed = [int(rows[-1].argmax())]
        tokens += fed
    return tokens, rows


def _token_feeds(contract: DecoderContract, fed: Sequence[int], past: int) -> dict[str, np.ndarray]:
    full = past + len(fed)
    feeds = {
        contract.input_ids: np.array([fed], np.int64),
        contract.attention_mask: np.ones((1, full), np.int64),
        contract.position_ids: np.arange(past, full, dtype=np.int64)[None],
    }
    return {name: array for name, array in feeds.items() if name is not None}


def _pairs(contract: DecoderContract) -> list[tuple[str, str]]:
    return [
        names
        for pair in contract.kv
        for names in ((pair.past_key, pair.present_key), (pair.past_value, pair.present_value))
    ]


def _empty(session: ort.InferenceSession, contract: DecoderContract) -> list[np.ndarray]:
    """Empty pasts, (1, Hkv, 0, d), in the order of _pairs."""
    types = {entry.name: _DTYPES[entry.type] for entry in session.get_inputs() if entry.type in _DTYPES}
    return [
        np.zeros((1, pair.kv_heads, 0, width), types[name])
        for pair in contract.kv
        for name, width in ((pair.past_key, pair.key_dim), (pair.past_value, pair.value_dim))
    ]
