"""A rewrite that is not made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qbpass.admission.report import AdmissionReport, Diagnostic
from qbpass.models.errors import QbpassError


class RewriteRefused(QbpassError):
    """Some site may not be rewritten, or every form of one was falsified on this machine."""

    def __init__(
        self,
        message: str,
        trials: Sequence[dict[str, Any]] = (),
        report: AdmissionReport | None = None,
        problems: Sequence[Diagnostic] = (),
        of_layout: bool = False,
    ) -> None:
        """of_layout: another layout need not be refused."""
        super().__init__(message)
        self.of_layout = of_layout
        self.trials = tuple(trials)
        self.report = report
        self.problems = tuple(problems)  # what an address audit found (address_audit.py)
