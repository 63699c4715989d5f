"""Releases, and the range of them that a rule speaks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)(\+.*)?")


@dataclass(frozen=True)
class VersionRange:
    """Releases from `first` to `last`, both included. A pre-release lies in no range: nobody read it."""

    first: str
    last: str

    def __post_init__(self) -> None:
        if release(self.first) is None or release(self.last) is None:
            raise ValueError(f"a range of versions needs two releases, not {self.first!r} and {self.last!r}")

    def __contains__(self, version: object) -> bool:
        found, first, last = (release(text) for text in (str(version), self.first, self.last))
        return found is not None and first is not None and last is not None and first <= found <= last

    def __str__(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


def release(version: str) -> tuple[int, ...] | None:
    """The numbers of a released version without trailing zeros, a local part (`+cu12`) left out; None for others."""
    found = _RELEASE.fullmatch(version)
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
