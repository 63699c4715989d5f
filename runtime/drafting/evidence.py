"""Grades of looked-up proposals: how long a suffix was found before, and how often what followed it was the same."""

from __future__ import annotations

#: Lengths at which a longer match is another class of evidence.
LENGTHS = (2, 3, 6, 12)
#: Earlier occurrences in a row that agree on what follows; more say no more.
MOST_AGREEING = 3


def grade_of(length: int, agreeing: int) -> int:
    """A number from 1 on, the same for the same class of evidence.

    length: tokens of the suffix that were found. agreeing: so many of its latest occurrences went on the same way.
    """
    longer = sum(length >= bound for bound in LENGTHS)
    return 1 + longer * MOST_AGREEING + min(max(agreeing, 1), MOST_AGREEING) - 1
