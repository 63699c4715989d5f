"""What a graph is really given: every call of a session, seen where it reaches ONNX Runtime.

Nothing here asks the phase guard or the engine. What was bound is read at the moment of the call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qbpass.rewrites.guard import PHASE_INPUT, SECOND_LAYOUT


@dataclass(frozen=True)
class Bound:
    """Memory bound to an input: its address and shape."""

    address: int
    shape: tuple[int, ...]

    def scalar(self) -> int:
        """The int64 that lies there now."""
        return ctypes.c_int64.from_address(self.address).value


@dataclass(frozen=True)
class ObservedCall:
    """graph: which of the session's names. phase: None where the graph has no phase input. rows: of token ids."""

    graph: str
    phase: int | None
    rows: int
    memory: dict[str, Bound]

    @property
    def facts(self) -> tuple[str, int | None, int]:
        """What must be the same whether or not anybody watches."""
        return self.graph, self.phase, self.rows


class ObservedSession:
    """A session that tells `told` of each call before it runs; `told` may raise, and then nothing runs."""

    def __init__(self, session: Any, graph: str, token_ids: str, told: Callable[[ObservedCall], None]):
        """token_ids: the name of that input."""
        self._session, self._graph, self._token_ids, self._told = session, graph, token_ids, told

    def io_binding(self) -> ObservedBinding:
        return ObservedBinding(self._session.io_binding())

    def run_with_iobinding(self, binding: ObservedBinding, *options: Any) -> None:
        phase = binding.memory.get(PHASE_INPUT)
        self._told(
            ObservedCall(
                self._graph,
                None if phase is None else phase.scalar() % SECOND_LAYOUT,
                binding.memory[self._token_ids].shape[-1],
                dict(binding.memory),
            )
        )
        self._session.run_with_iobinding(binding.inner, *options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class ObservedBinding:
    """A binding that remembers where its inputs lie, whichever way they are bound (runtime/addresses.py)."""

    def __init__(self, inner: Any):
        self.inner = inner
        self.memory: dict[str, Bound] = {}
        self._iobinding = _ObservedAddresses(inner._iobinding, self.memory)

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        self.memory[name] = Bound(array.ctypes.data, array.shape)
        self.inner.bind_cpu_input(name, array)

    def bind_input(self, name: str, device: str, number: int, dtype: Any, shape: Any, address: int) -> None:
        self.memory[name] = Bound(address, tuple(shape))
        self.inner.bind_input(name, device, number, dtype, shape, address)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _ObservedAddresses:
    def __init__(self, inner: Any, memory: dict[str, Bound]):
        self._inner, self._memory = inner, memory
        self.bind_output = inner.bind_output

    def bind_input(self, name: str, device: Any, elem: int, shape: tuple[int, ...], address: int) -> None:
        self._memory[name] = Bound(address, tuple(shape))
        self._inner.bind_input(name, device, elem, shape, address)
