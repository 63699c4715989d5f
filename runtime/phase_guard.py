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
    """One engine's flag. Its role and layout are what they were made with: only the stage moves.

    `native_only` runs every phase in the exported layout: what speculation without qbpass does.
    """

    def __init__(self, role: Role = Role.TARGET, *, native_only: bool = False):
        self._role = role
        self._native_only = native_only
        self._stage = Stage.PREFILL

    @property
    def role(self) -> Role:
        return self._role

    @property
    def native_only(self) -> bool:
        return self._native_only

    @property
    def stage(self) -> Stage:
        """Prefill between calls, whatever happened in the last one."""
        return self._stage

    @property
    def value(self) -> int:
        """What the graph's phase input gets."""
        return NATIVE_ONLY if self._native_only else int(_PHASES[self._role, self._stage])

    def new_request(self) -> None:
        self._stage = Stage.PREFILL

    @contextmanager
    def at(self, stage: Stage) -> Iterator[None]:
        """The flag during one call; what it was before comes back however the call ends."""
        before = self._stage
        self._stage = stage
        try:
            yield
        finally:
            self._stage = before
