"""What a request returned, in the terms two arms are compared in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

StopReason = Literal["end_of_generation", "stop_string", "max_new_tokens", "context_length", "cancelled"]


@dataclass(frozen=True)
class Endpoint:
    """token_ids: generated tokens, the end-of-generation token included.

    Two endpoints are equal in every field or not equal.
    """

    token_ids: tuple[int, ...]
    end_of_generation: bool
    stop_reason: StopReason

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def last_token(self) -> int | None:
        return self.token_ids[-1] if self.token_ids else None


def first_difference(reference: Sequence[int], other: Sequence[int]) -> int | None:
    """The first index at which two token sequences differ (a missing token differs); None where they are equal."""
    for index, (a, b) in enumerate(zip(reference, other, strict=False)):
        if a != b:
            return index
    return None if len(reference) == len(other) else min(len(reference), len(other))
