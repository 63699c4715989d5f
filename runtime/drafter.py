"""What the engine asks of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    def start(self, tokens: Sequence[int], rows: int) -> None:
        """A new request with this prompt, of up to `rows` positions."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Tokens that were committed."""

    def propose(self, limit: int) -> list[int]:
        """Up to `limit` tokens that may follow what was committed."""


class NoDrafter:
    """Serial decoding: never proposes."""

    def start(self, tokens: Sequence[int], rows: int) -> None:
        del tokens, rows

    def extend(self, tokens: Sequence[int]) -> None:
        del tokens

    def propose(self, limit: int) -> list[int]:
        del limit
        return []
