"""What can be wrong with how a request's tokens are to be chosen."""

from __future__ import annotations

from qbpass.models.errors import QbpassError


class SamplingError(QbpassError):
    """A setting outside its range, or settings that leave no token to choose."""


class ProcessorError(QbpassError):
    """A processor that does not do what the protocol asks of it."""


class GrammarError(QbpassError):
    """A grammar, regex or JSON schema that can't be used, or whose library is not installed."""
