"""What a bundle's own call costs: blocks of its active layout, as the runtime calls them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.open_target import open_target

Calls = dict[int, Callable[[], Any]]


def bundle_calls(bundle: Bundle, spec: SessionSpec, past: int) -> tuple[Calls, Calls]:
    """rows -> a call behind `past` random tokens, and rows -> what takes it back to where it starts."""
    target = open_target(bundle, spec)
    widest = target.max_queries
    draw = np.random.default_rng(0)
    target.start(past + widest)
    target.prefill(draw.integers(0, target.vocab_size, past).tolist())
    tokens = draw.integers(0, target.vocab_size, widest).tolist()
    queries = range(1, widest + 1)
    calls: Calls = {q: partial(target.verify, tokens[:q]) for q in queries}
    return calls, dict.fromkeys(queries, partial(target.rollback, past))
