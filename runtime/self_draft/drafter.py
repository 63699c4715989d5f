"""A self draft: the target's weights, quantized, over the target's own KV buffers.

It reads the keys and values of committed rows as the target wrote them, and writes those of the tokens it proposes in
the rows behind the target's counter, which are scratch: the target's verification writes them anew before it reads
them. So there is no prompt to read, nothing to catch up with and nothing to roll back, and what it remembers is right
as far as the target is. A row below the counter is never written: the target does not lend it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qbpass.runtime.addresses import elem_type, ort_device, raw_binders
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.call_error import session_run
from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Proposal
from qbpass.runtime.element_types import logits_dtype
from qbpass.runtime.feeds import Feeds
from qbpass.runtime.target import BadLogits


class SelfDrafter:
    """Of one target. `session` runs a one-row graph over the target's caches (rewrites/self_draft/graph.py)."""

    def __init__(self, session: Any, target: BlockTarget, known: int | None = None):
        """known: tokens whose logits the graph gives, the vocabulary's first; None for all of them."""
        self.session, self.target = session, target
        names = target.interface
        dtype = logits_dtype(session, names.logits)
        self._logits_V = np.full(names.vocab_size, -np.inf, dtype)  # those that the graph does not give stay so
        shape = (1, 1, names.vocab_size if known is None else known)
        self._logits = names.logits, ort_device("cpu"), elem_type(dtype), shape, self._logits_V.ctypes.data
        self._feeds = Feeds(names)
        self._last: int | None = None  # the pending token, which is no row of the cache yet

    def start(self, tokens: Sequence[int], rows: int) -> None:
        del tokens
        self._last = None
        if self._feeds.rows < rows:
            self._feeds.reserve(rows)

    def extend(self, tokens: Sequence[int]) -> None:
        self._last = tokens[-1]

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        """Up to `limit` tokens, each chosen as the target would choose it; fewer where logits are not numbers."""
        if self._last is None or limit < 1:
            return Proposal()
        chooser, token, row = fork(), self._last, self.target.length
        proposal: list[int] = []
        while True:
            try:
                token = chooser.choose(self._step(token, row + len(proposal)))
            except BadLogits:
                break
            proposal.append(token)
            if len(proposal) == limit:
                break
            chooser.advance(token)
        return Proposal(tuple(proposal))

    def _step(self, token: int, row: int) -> np.ndarray:
        """The logits behind `token`, whose keys and values go to `row`: (vocabulary,), valid until the next call."""
        binding = self.target.lend(self.session, row)
        self._feeds.bind(binding, (token,), row, None, None)
        _, bind_output = raw_binders(binding)
        bind_output(*self._logits)
        session_run(self.session, binding)
        return self._logits_V
