"""What the engine asks of a drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from qbpass.runtime.choosing import Chooser


@dataclass(frozen=True)
class Proposal:
    """tokens: what may follow the pending token. grade: the kind of evidence behind them, a small number that a policy
    keeps statistics by, such as the length of a matched suffix.
    """

    tokens: tuple[int, ...] = ()
    grade: int = 0


class Drafter(Protocol):
    def start(self, tokens: Sequence[int], rows: int) -> None:
        """A new request with this prompt, of up to `rows` positions."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Tokens that were committed."""

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        """Up to `limit` tokens that may follow what was committed.

        fork: makes a chooser at the position behind the last committed token, to be used up or not made at all.
        Where it finds no token that may be chosen (SamplingError), the round goes without proposals.
        """


class NoDrafter:
    """Serial decoding: never proposes."""

    def start(self, tokens: Sequence[int], rows: int) -> None:
        del tokens, rows

    def extend(self, tokens: Sequence[int]) -> None:
        del tokens

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        del limit, fork
        return Proposal()
