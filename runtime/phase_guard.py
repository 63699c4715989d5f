"""The phase flag: derived from role and stage, set before anything runs, restored on every exit.

Source: Phase-Scoped Query Layouts, section 3.4. The flag is an input of every call of a guarded graph, so there is no
path, with or without observers, that runs a graph without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from qbpass.rewrites.phases import Phase


class Role(Enum):
    TARGET = "target"
    DRAFT = "draft"


class Stage(Enum):
    PREFILL = "prefill"
    CONTINUATION = "continuation"


_PHASES = {
    (Role.TARGET, Stage.PREFILL): Phase.TARGET_PREFILL,
    (Role.TARGET, Stage.CONTINUATION): Phase.TARGET_CONTINUATION,
    (Role.DRAFT, Stage.PREFILL): Phase.DRAFT_PREFILL,
    (Role.DRAFT, Stage.CONTINUATION): Phase.DRAFT_CONTINUATION,
}

#: The phase value no layout is active in: the native graph, whatever the mask (guard_table in rewrites/phases.py).
NATIVE_ONLY = 0


class PhaseGuard:
    """One engine's flag.

    `native_only` runs every phase in the exported layout: what speculation without qbpass does.
    """

    def __init__(self, role: Role = Role.TARGET, *, native_only: bool = False):
        self.role = role
        self.native_only = native_only
        self.stage = Stage.PREFILL

    @property
    def value(self) -> int:
        """What the graph's phase input gets."""
        return NATIVE_ONLY if self.native_only else int(_PHASES[self.role, self.stage])

    def new_request(self) -> None:
        self.stage = Stage.PREFILL

    @contextmanager
    def at(self, stage: Stage) -> Iterator[None]:
        """The flag during one call; what it was before comes back however the call ends."""
        before = self.stage
        self.stage = stage
        try:
            yield
        finally:
            self.stage = before
