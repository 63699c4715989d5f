"""What a request's speculation has lost against serial decoding, and what may still be lost.

Serial decoding pays one call of one row a token. A request may take (1 + SHARE) times as long and GRACE calls more; a
guess whose likely loss does not fit into what is left of that has to be a good one (adaptive.py).
"""

from __future__ import annotations

from dataclasses import dataclass

#: What may be lost: so many calls of one row at once, and a share of the time that serial decoding would have taken.
GRACE, SHARE = 0.3, 0.0125


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
