"""What a request's speculation has lost against serial decoding, and whether one more round may be risked.

Serial decoding pays one call of one row a token. A round that would lose more than is left, were all of it rejected,
is not run: so a request takes at most (1 + SHARE) times serial decoding's time and GRACE calls, whatever is proposed.
"""

from __future__ import annotations

from dataclasses import dataclass

#: What may be lost: so many calls of one row at once, and a share of the time that serial decoding would have taken.
GRACE, SHARE = 0.5, 0.015


@dataclass
class Ledger:
    """Seconds. serial: of serial decoding for the tokens committed so far; spent: of the rounds that gave them."""

    serial: float = 0.0
    spent: float = 0.0

    def new_request(self) -> None:
        self.serial = self.spent = 0.0

    def left(self, row_seconds: float) -> float:
        """How much more a round may take than a call of one row, which takes `row_seconds`."""
        return GRACE * row_seconds + (1 + SHARE) * self.serial - self.spent

    def round(self, tokens: int, row_seconds: float, seconds: float) -> None:
        """A round of `seconds` committed so many tokens."""
        self.serial += tokens * row_seconds
        self.spent += seconds
