"""Errors of support questions: one line that says what is wrong and what to do."""

from qbpass.models.errors import QbpassError


class SupportError(QbpassError):
    """A backend that nobody knows, a file that is no kernel table, or an installed rule that can't be asked."""
