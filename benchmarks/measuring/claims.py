"""A ratio with what it should be. A form whose bytes are not the reference's has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qbpass.admission.probes.interleaved import Ratio
from qbpass.screen import say, table

ABSENT = "–"


@dataclass(frozen=True)
class Claim:
    """name: numerator/denominator. ratio: None where the numerator's bytes differ. Either bound may be absent."""

    name: str
    ratio: Ratio | None
    at_most: float | None = None
    at_least: float | None = None

    @property
    def met(self) -> bool | None:
        """None where there is no bound."""
        if self.at_most is None and self.at_least is None:
            return None
        if self.ratio is None:
            return False
        below = self.at_most is None or self.ratio.median <= self.at_most
        return below and (self.at_least is None or self.ratio.median >= self.at_least)

    def row(self) -> list[str]:
        bound = f"<= {self.at_most}" if self.at_most is not None else f">= {self.at_least}"
        if self.met is None:
            bound = ABSENT
        if self.ratio is None:
            return [self.name, ABSENT, ABSENT, bound, "no: bytes differ"]
        spread = f"{self.ratio.low:.3f} – {self.ratio.high:.3f}"
        return [self.name, f"{self.ratio.median:.3f}", spread, bound, answer(self.met)]


CLAIM_COLUMNS = [("ratio", False), ("median", True), ("quartiles", True), ("should be", True), ("met", False)]


def show_claims(claims: Sequence[Claim], title: str | None = None) -> None:
    """The table of ratios, after an empty line."""
    say("" if title is None else f"\n{title}")
    table(CLAIM_COLUMNS, [claim.row() for claim in claims])


def answer(value: bool | None) -> str:
    return ABSENT if value is None else "yes" if value else "no"


def plain(value: Any) -> Any:
    """`value` for JSON: its claims as objects."""
    if isinstance(value, Claim):
        return {**asdict(value), "met": value.met}
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list) else value
