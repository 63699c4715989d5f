"""Counters of one request, with the identities they must obey."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Trace:
    """rounds: verification calls; rows: continuation rows evaluated.

    A round commits its accepted tokens and one more.
    """

    prompt_tokens: int = 0
    rounds: int = 0
    rows: int = 0
    rows_rolled_back: int = 0
    proposed: int = 0
    accepted: int = 0
    rejected: int = 0
    corrections: int = 0
    bonuses: int = 0
    discarded: int = 0  # tokens of a round behind a stop: never shown

    def check(self, generated: int) -> None:
        """Raises AssertionError where the counters contradict each other: a broken engine, never a user's mistake."""
        identities = {
            "proposed = accepted + rejected": self.proposed == self.accepted + self.rejected,
            "rows = rounds + proposed": self.rows == self.rounds + self.proposed,
            "rounds = corrections + bonuses": self.rounds == self.corrections + self.bonuses,
            "rows rolled back = rejected + discarded": self.rows_rolled_back == self.rejected + self.discarded,
            # The first token comes from prefill, every other from a round.
            "generated + discarded = 1 + accepted + rounds": generated + self.discarded
            == 1 + self.accepted + self.rounds,
        }
        broken = [name for name, holds in identities.items() if not holds]
        if broken:
            raise AssertionError(f"engine counters contradict each other: {'; '.join(broken)}: {asdict(self)}")

    @property
    def acceptance(self) -> float | None:
        """Accepted share of the proposed tokens; None where nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def tokens_per_round(self) -> float | None:
        return (self.accepted + self.rounds) / self.rounds if self.rounds else None
