"""What a probe is: a question, the trials that may answer it with no, and what is said of those that did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qbpass.admission.probes.case import Case
from qbpass.admission.probes.trial import Trial

#: Of one trial: its facts, and whether its rows differ.
Tried = tuple[Mapping[str, int], bool]


@dataclass(frozen=True)
class Settings:
    """queries: the widest block. seeds: each draws operands anew."""

    queries: int = 4
    seeds: tuple[int, ...] = (0, 1)

    @property
    def widths(self) -> range:
        return range(2, self.queries + 1)


@dataclass(frozen=True)
class Probe:
    """question: a sentence that is false where one trial differs. applies: whether it can be asked of a case."""

    name: str
    question: str
    applies: Callable[[Case], bool]
    trials: Callable[[Case, Settings], Iterator[Trial]]
    detail: Callable[[Sequence[Tried]], dict[str, Any]]


def differing(tried: Sequence[Tried], fact: str) -> list[int]:
    """The values of a fact for which at least one trial differs, in order."""
    return sorted({facts[fact] for facts, differs in tried if differs and fact in facts})


def by_width(tried: Sequence[Tried]) -> dict[str, Any]:
    """Of trials that name a width: the widths at which rows differ, and the numbers of keys if they have any."""
    detail: dict[str, Any] = {"widths_differing": differing(tried, "rows")}
    if any("keys" in facts for facts, _ in tried):
        detail["keys_differing"] = differing(tried, "keys")
    return detail
