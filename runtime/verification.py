"""The acceptance rule of greedy speculative decoding, as a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """accepted: leading proposal tokens that the target chose itself. next_token: the target's own choice behind them:
    a correction where a proposal was rejected, a bonus where all were accepted.
    """

    accepted: tuple[int, ...]
    next_token: int
    rejected: int

    @property
    def is_bonus(self) -> bool:
        return self.rejected == 0

    @property
    def committed(self) -> tuple[int, ...]:
        return (*self.accepted, self.next_token)


def verify_greedy(proposal: Sequence[int], choices: Sequence[int]) -> Verdict:
    """choices[i]: the target's greedy token behind the pending token and proposal[:i], one more than proposed.

    Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding (2023), with a point-mass draft.
    """
    if len(choices) != len(proposal) + 1:
        raise ValueError(f"{len(choices)} choices for {len(proposal)} proposed tokens")
    count = 0
    while count < len(proposal) and proposal[count] == choices[count]:
        count += 1
    return Verdict(tuple(proposal[:count]), choices[count], len(proposal) - count)
