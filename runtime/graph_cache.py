"""What is kept between calls: bindings, and on CUDA the captured graph that a call replays.

A binding holds addresses and shapes, a captured graph kernels, addresses and shapes. Both are right for the call they
were made for and for calls like it, and what "like it" means is said by `GraphKey`, whose every field takes part in
every reuse. Source: Phase-Scoped Query Layouts, section 3.4 (the layout flag takes part in the reuse check of graphs,
beside capacity and shapes).
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")

#: gpu_graph_id of each thing made, in this process: captured graphs belong to a session, which several targets may
#: share, each with memory of its own. ONNX Runtime keeps 0 for runs that name no graph.
_IDS = itertools.count(1)


@dataclass(frozen=True)
class GraphKey:
    """Two calls may share what was kept for one of them where all of this is the same.

    session: the session itself, compared by identity (held, so that no other gets its address).
    layout: the flag of this call: is the layout active, and which (0 for the native one).
    width: rows of the call. extent: keys that what is bound can read; 0 where that is data, not a shape.
    capacity: rows of the buffers; they lie elsewhere when it grows. shapes: of whatever else is bound for good.
    """

    session: Hashable
    layout: int
    width: int
    extent: int
    capacity: int
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass
class Kept(Generic[Value]):
    """graph_id: what `gpu_graph_id` is in runs of it; another number for everything that was ever made."""

    key: GraphKey
    graph_id: int
    value: Value


class GraphCache(Generic[Value]):
    """The least recently used goes where there are more than `most`: prompts have as many widths as lengths."""

    def __init__(self, most: int = 64, dropped: Callable[[int], object] = lambda graph_id: None):
        """dropped: told the id of what is kept no longer."""
        self.most, self._dropped = most, dropped
        self.made = 0
        self.reused = 0
        self._kept: OrderedDict[GraphKey, Kept[Value]] = OrderedDict()

    def get(self, key: GraphKey, make: Callable[[], Value]) -> Kept[Value]:
        """What was kept for exactly this key, or what `make` makes now. What raises is not kept."""
        kept = self._kept.get(key)
        if kept is not None:
            self.reused += 1
            self._kept.move_to_end(key)
            return kept
        kept = Kept(key, next(_IDS), make())
        self.made += 1
        self._kept[key] = kept
        if len(self._kept) > self.most:
            self._dropped(self._kept.popitem(last=False)[1].graph_id)
        return kept

    def clear(self) -> None:
        """Where memory that was bound is given back."""
        while self._kept:
            self._dropped(self._kept.popitem()[1].graph_id)

    def __len__(self) -> int:
        return len(self._kept)
