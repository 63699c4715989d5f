"""Counters of one request, with the identities they must obey."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Trace:
    """rounds: verification calls; rows: continuation rows they evaluated. Prefill is no round.

    drafted: tokens that a drafter gave; proposed: those that were verified, the others were withheld. A round makes
    its accepted tokens visible and, unless it stopped inside them, one more: a correction or a bonus.
    """

    prompt_tokens: int = 0
    rounds: int = 0
    plain_rounds: int = 0  # those that verified no proposal
    speculative_rounds: int = 0
    rows: int = 0
    rows_committed: int = 0
    rows_rolled_back: int = 0
    drafted: int = 0
    withheld: int = 0
    proposed: int = 0
    accepted: int = 0
    rejected: int = 0
    discarded: int = 0  # proposals behind a stop: never judged
    corrections: int = 0
    bonuses: int = 0
    stops_inside: int = 0  # rounds whose last visible token was a proposed one

    def check(self, generated: int) -> None:
        """Raises AssertionError where the counters contradict each other: a broken engine, never a user's mistake."""
        last = self.corrections + self.bonuses
        identities = {
            "rounds = plain rounds + speculative rounds": self.rounds == self.plain_rounds + self.speculative_rounds,
            "drafted = proposed + withheld": self.drafted == self.proposed + self.withheld,
            "proposed = accepted + rejected + discarded": self.proposed
            == self.accepted + self.rejected + self.discarded,
            "rows = rounds + proposed": self.rows == self.rounds + self.proposed,
            "rows = rows committed + rows rolled back": self.rows == self.rows_committed + self.rows_rolled_back,
            "rounds = corrections + bonuses + stops inside": self.rounds == last + self.stops_inside,
            # The first token comes from prefill, every other from a round.
            "generated = 1 + accepted + corrections + bonuses": generated == 1 + self.accepted + last,
            # All but the last visible token, which is pending.
            "rows committed = generated - 1": self.rows_committed == generated - 1,
        }
        broken = [name for name, holds in identities.items() if not holds]
        if broken:
            raise AssertionError(f"engine counters contradict each other: {'; '.join(broken)}: {asdict(self)}")

    def add(self, other: Trace) -> None:
        """Count another request's, too."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def acceptance(self) -> float | None:
        """Accepted share of the proposed tokens; None where nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def proposed_per_round(self) -> float | None:
        """The mean k."""
        return self.proposed / self.rounds if self.rounds else None

    @property
    def plain_share(self) -> float | None:
        """Share of the rounds that verified no proposal."""
        return self.plain_rounds / self.rounds if self.rounds else None

    @property
    def tokens_per_round(self) -> float | None:
        return self.rows_committed / self.rounds if self.rounds else None
