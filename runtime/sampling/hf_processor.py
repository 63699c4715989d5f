"""transformers' LogitsProcessor, and whatever is called like one, on the logical prefix and with its state forked.

A LogitsProcessor may keep anything in its attributes and change it in a call. transformers calls it once a position,
in order, and so does a serial loop; speculation must look as if it did. Every position's call is therefore made on a
copy of the processor as the position before left it. What copying can't reach (variables of a closure, attributes of a
class, a global generator) is refused where it shows: in what a closure or a class holds after any call, or in two calls
on equal copies that differ, which is tried in a request's first calls. That falsifies; it can't certify.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from qbpass.models.session import one_line
from qbpass.runtime.sampling.errors import ProcessorError

#: The first calls of a request that are made twice, on equal copies.
CALLS_MADE_TWICE = 4


@dataclass
class _Held:
    """before: the processor as the last position's call left it; after: as this one's did, once it is made."""

    before: Any
    calls: int
    after: Any = None


class HFProcessor:
    """A `Processor`: `processor(input_ids, scores)` with (1, n) int64 and (1, vocabulary) float32 tensors of its own.

    Needs torch. Raises ProcessorError for a processor that can't be copied.
    """

    def __init__(self, processor: Callable[[Any, Any], Any]):
        self._processor = processor
        self._name = type(processor).__name__ if not isinstance(processor, FunctionType) else processor.__name__
        self._copied(processor)

    def begin(self, prompt: Sequence[int]) -> _Held:
        del prompt
        return _Held(self._processor, 0)

    def apply(self, prefix: np.ndarray, state: _Held, scores_V: np.ndarray) -> np.ndarray:
        called = self._copied(state.before)
        scores = self._call(called, prefix, scores_V)
        if state.calls < CALLS_MADE_TWICE:
            again = self._call(self._copied(state.before), prefix, scores_V)
            if again.tobytes() != scores.tobytes():
                raise ProcessorError(
                    f"processor {self._name} answers two equal calls differently: it keeps state outside of itself, "
                    "which can't be rolled back; keep it in the processor's attributes"
                )
        state.after = called
        return scores

    def advance(self, state: _Held, token: int) -> _Held:
        """Raises ProcessorError where the position was not chosen: the call that the state follows from is missing."""
        del token
        if state.after is None:
            raise ProcessorError(f"processor {self._name} was not asked about a position it is advanced over")
        return _Held(state.after, state.calls + 1)

    def _call(self, processor: Any, prefix: np.ndarray, scores_V: np.ndarray) -> np.ndarray:
        import torch

        ids = torch.tensor(np.array(prefix, np.int64)[None])
        before = _out_of_reach(processor)
        with _one_thread(torch):
            scores = processor(ids, torch.tensor(scores_V[None]))
        if not np.array_equal(ids.numpy(), np.asarray(prefix)[None]):
            raise ProcessorError(f"processor {self._name} changed the tokens it was given: let it change a copy")
        after = _out_of_reach(processor)
        changed = next((where for where in {**before, **after} if not _same(before.get(where), after.get(where))), None)
        if changed is not None:
            raise ProcessorError(
                f"processor {self._name} keeps state in {changed[1]}, which can't be rolled back: keep it in the "
                "processor's attributes"
            )
        if not isinstance(scores, torch.Tensor) or scores.shape != (1, len(scores_V)):
            got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise ProcessorError(f"processor {self._name} returned {got}, not scores of shape (1, {len(scores_V)})")
        found: np.ndarray = scores.detach().to(torch.float32).numpy()[0].copy()
        return found

    def _copied(self, processor: Any) -> Any:
        try:
            return copy.deepcopy(processor)
        except Exception as error:  # whatever a class's own __deepcopy__ or __reduce__ raises
            raise ProcessorError(
                f"processor {self._name} can't be copied ({one_line(error, 120)}), and what it keeps can't be rolled "
                "back: give it a __deepcopy__"
            ) from error


@contextmanager
def _one_thread(torch: Any) -> Iterator[None]:
    """A row of scores is little work, and torch's other threads would wait for it beside ONNX Runtime's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _out_of_reach(processor: Any) -> dict[tuple[int, str], Any]:
    """Where, and a copy of what is there: plain data that copies of `processor` share and a call may change.

    Of a list of processors, as transformers' LogitsProcessorList, that of each.
    """
    parts = (processor, *processor) if isinstance(processor, list | tuple) else (processor,)
    return {
        (number, where): copy.deepcopy(value)
        for number, part in enumerate(parts)
        for where, value in _shared_by_copies(part)
        if _is_data(value)
    }


def _shared_by_copies(part: Any) -> Iterator[tuple[str, Any]]:
    for name, value in ((type(part).__name__, part), *getattr(part, "__dict__", {}).items()):
        function = value.__func__ if isinstance(value, MethodType) else value
        if isinstance(function, FunctionType):
            for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                yield f"variable {variable} of {name}'s closure", _content(cell)
            yield f"attributes of function {name}", dict(vars(function))
            yield f"defaults of function {name}", [function.__defaults__, function.__kwdefaults__]
    for kind in type(part).__mro__[:-1]:
        for name, value in vars(kind).items():
            if not name.startswith("__"):
                yield f"{kind.__name__}.{name}", value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _is_data(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_data(part) for part in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return all(_is_data(part) for part in value)
    return value is None or isinstance(value, bool | int | float | complex | str | bytes) or hasattr(value, "__array__")


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if hasattr(one, "__array__"):
        one, other = np.asarray(one), np.asarray(other)
        return (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())
    return bool(one == other) or (one != one and other != other)
