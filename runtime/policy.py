"""How many tokens a round drafts and verifies. A policy decides about speed only: no output depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from qbpass.runtime.drafter import Proposal


@dataclass(frozen=True)
class Round:
    """What one round did. rows: committed rows in the KV cache before it. asked: tokens the drafter was asked for;
    drafted: those it gave; proposed: those that were verified; accepted: those the target chose itself. grade: the
    proposal's. tokens: those that became visible. Seconds of drafting and of the target's call.
    """

    rows: int
    asked: int
    drafted: int
    proposed: int
    accepted: int
    grade: int
    tokens: tuple[int, ...]
    draft_seconds: float
    verify_seconds: float


class DraftingPolicy(Protocol):
    def start(self, prompt_tokens: int) -> None:
        """A new request."""

    def limit(self, room: int, rows: int) -> int:
        """How many tokens to ask the drafter for, 0 to `room`, with `rows` in the KV cache. 0: it is not asked."""

    def keep(self, proposal: Proposal, rows: int) -> int:
        """How many of the proposed tokens to verify."""

    def observe(self, round_: Round) -> None:
        """A round is over."""


class FixedPolicy:
    """As many as a round has room for, whatever it costs."""

    def start(self, prompt_tokens: int) -> None:
        del prompt_tokens

    def limit(self, room: int, rows: int) -> int:
        del rows
        return room

    def keep(self, proposal: Proposal, rows: int) -> int:
        del rows
        return len(proposal.tokens)

    def observe(self, round_: Round) -> None:
        del round_
