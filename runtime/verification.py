"""The acceptance rule: walk down the verified rows as serial decoding would, until one of them decides otherwise.

Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding (2023), with proposals that are
points: a proposed token is accepted exactly where the target's own rule chooses it. With randomness indexed by position
that holds for sampling as it does for greedy decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qbpass.runtime.choosing import Chooser
from qbpass.runtime.endpoint import StopReason
from qbpass.runtime.stops import StopWatch


@dataclass(frozen=True)
class Verdict:
    """tokens: those that become visible. accepted: so many of them were proposed; the one behind them, if any, is the
    target's own: a correction where a proposal was rejected, a bonus where all were accepted. rejected: proposals from
    the first the target did not choose on. discarded: proposals behind a stop. stop: why nothing follows.
    """

    tokens: tuple[int, ...]
    accepted: int
    rejected: int
    discarded: int
    stop: StopReason | None

    @property
    def is_correction(self) -> bool:
        return len(self.tokens) > self.accepted and self.rejected > 0

    @property
    def is_bonus(self) -> bool:
        return len(self.tokens) > self.accepted and self.rejected == 0


def judge(proposal: Sequence[int], logits_QV: np.ndarray, chooser: Chooser, watch: StopWatch) -> Verdict:
    """logits_QV: (len(proposal) + 1, vocabulary), the row of the pending token and of each proposed one.

    Every row is chosen from with the state of its logical prefix: `chooser` and `watch` are advanced over the tokens
    that become visible and over no other. Raises BadLogits where a row that decides is not numbers.
    """
    if len(logits_QV) != len(proposal) + 1:
        raise ValueError(f"{len(logits_QV)} rows of logits for {len(proposal)} proposed tokens")
    tokens: list[int] = []
    for row in range(len(proposal) + 1):
        token = chooser.choose(logits_QV[row])
        chooser.advance(token)
        tokens.append(token)
        stop = watch.push(token)
        agrees = row < len(proposal) and token == proposal[row]
        if stop is not None or not agrees:
            break
    accepted = len(tokens) if agrees else len(tokens) - 1
    behind = len(proposal) - accepted
    # Where the last visible token was proposed, too, the request stopped: what lies behind it was never judged.
    return Verdict(tuple(tokens), accepted, 0 if agrees else behind, behind if agrees else 0, stop)
