"""The reference: the unmodified frozen graph, one token a call, its KV passed on without a copy of our own.

Present outputs of one call are the past inputs of the next; the graph's own Concat is the only copy. Where every layer
is a fused operator that appends in place, past and present are one buffer, as deployments of such graphs have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from qbpass.models.contract import DecoderContract
from qbpass.models.decoder import Decoder
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.kv_cache import numpy_dtype
from qbpass.runtime.call_error import session_run
from qbpass.runtime.element_types import logits_dtype
from qbpass.runtime.placed_session import open_placed
from qbpass.runtime.prefill import calls, recipe_rows
from qbpass.runtime.shared_cache import SharedCache, exported_parts


class SerialTarget:
    """Serial decoding on the frozen graph. `verify` takes one row, or a block for measuring the native graph."""

    def __init__(
        self,
        session: Any,
        contract: DecoderContract,
        spec: SessionSpec,
        *,
        context_length: int | None,
        max_queries: int = 1,
        share_cache: bool = False,
        prefill_rows: int | None = None,
    ):
        """share_cache: past and present of every layer are one memory. Only for graphs whose operators append to it.
        prefill_rows: rows of the prompt a call (prefill.py); None for all of them in one.
        """
        self.session = session
        self.contract = contract
        self.vocab_size = contract.vocab_size
        self.context_length = context_length
        self.max_queries = max_queries
        self.prefill_rows = prefill_rows
        self._device = "cuda" if spec.provider == "cuda" else "cpu"
        self._logits_dtype = logits_dtype(session, contract.logits)
        self._pairs = [
            (past, present)
            for pair in contract.kv
            for past, present in ((pair.past_key, pair.present_key), (pair.past_value, pair.present_value))
        ]
        self._shared = SharedCache(exported_parts(contract.kv), self._device) if share_cache else None
        self._binding: Any = None  # over the shared cache
        self._past: list[Any] = []
        self._length = 0

    @classmethod
    def from_frozen(
        cls,
        frozen: Decoder,
        spec: SessionSpec,
        *,
        max_queries: int = 1,
        share_cache: bool = False,
        prefill: str = "whole",
    ) -> Self:
        """prefill: how the recipe has the prompt fed (models/recipe.py)."""
        return cls(
            open_placed(frozen.path, spec, weights=frozen.weights),
            frozen.contract,
            spec,
            context_length=frozen.context_length,
            max_queries=max_queries,
            share_cache=share_cache,
            prefill_rows=recipe_rows(prefill),
        )

    @classmethod
    def from_bundle(cls, bundle: Bundle, spec: SessionSpec) -> SerialTarget:
        """The bundle's reference, by its recipe. Its cache is shared where every layer was shown to append in place."""
        prefill = bundle.manifest.recipe.prefill
        return cls.from_frozen(bundle.reference, spec, share_cache=bundle.appends_in_place, prefill=prefill)

    @property
    def shares_cache(self) -> bool:
        return self._shared is not None

    @property
    def length(self) -> int:
        return self._length

    def start(self, rows: int) -> None:
        self._length = 0
        if self._shared is not None:
            if self._shared.reserve(rows):
                self._binding = self.session.io_binding()
                self._shared.bind(self._binding, 1, {source for source, _ in self._pairs})
            return
        self._past = [self._empty(shape, elem) for shape, elem in self._empty_shapes()]

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        for rows in calls(tokens, self.prefill_rows):
            logits = self._call(rows)
        return logits[-1:].copy()

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        if not 1 <= len(tokens) <= self.max_queries:
            raise ValueError(f"{len(tokens)} rows asked of serial decoding")
        return self._call(tokens)

    def rollback(self, length: int) -> None:
        """Serial decoding never evaluates a row it does not keep."""
        if length != self._length:
            raise ValueError(f"the serial reference can't roll back from {self._length} to {length}")

    def cached(self, index: int) -> np.ndarray:
        """A copy of one KV tensor as (length, Hkv, d)."""
        if self._shared is not None:
            return self._shared.read(index, self._length)
        return np.ascontiguousarray(self._past[index].numpy()[0].transpose(1, 0, 2))

    def _call(self, tokens: Sequence[int]) -> np.ndarray:
        past, full = self._length, self._length + len(tokens)
        contract = self.contract
        if self._shared is not None and full > self._shared.capacity:
            raise ValueError(f"{full} rows asked of a cache of {self._shared.capacity}")
        session = self._graph()
        binding = session.io_binding() if self._shared is None else self._binding
        feeds = {
            contract.input_ids: np.array([tokens], np.int64),
            contract.attention_mask: np.ones((1, full), np.int64),
            contract.position_ids: np.arange(past, full, dtype=np.int64)[None],
        }
        for name, array in (*feeds.items(), *self._phase_feeds().items()):
            if name is not None:
                binding.bind_cpu_input(name, array)
        logits = np.empty((len(tokens), self.vocab_size), self._logits_dtype)
        binding.bind_output(contract.logits, "cpu", 0, logits.dtype, (1, *logits.shape), logits.ctypes.data)
        for (source, present), value in zip(self._pairs, self._past, strict=self._shared is None):
            binding.bind_ortvalue_input(source, value)
            binding.bind_output(present, self._device)
        session_run(session, binding)
        if self._shared is None:
            self._past = list(binding.get_outputs())[1:]
        self._length = full
        return logits

    def _graph(self) -> Any:
        """The session of the next call."""
        return self.session

    def _phase_feeds(self) -> dict[str, np.ndarray]:
        """What a rewritten graph takes beside the decoder's own inputs."""
        return {}

    def _empty_shapes(self) -> list[tuple[tuple[int, ...], int]]:
        return [
            ((1, pair.kv_heads, 0, width), pair.elem_type)
            for pair in self.contract.kv
            for width in (pair.key_dim, pair.value_dim)
        ]

    def _empty(self, shape: tuple[int, ...], elem_type: int) -> Any:
        import onnxruntime as ort

        dtype = numpy_dtype(elem_type)
        return ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype), self._device, 0)
