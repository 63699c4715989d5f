"""What can be wrong with how a request's tokens are to be chosen."""

from __future__ import annotations

from qbpass.models.errors import QbpassError


class SamplingError(QbpassError):
    """A setting outside its range, or settings that leave no token to choose.

    And the base of what else a chooser raises, so that a drafter, whose text may never come to be, can end its proposal
    there.
    """


class ProcessorError(SamplingError):
    """A processor that does not do what the protocol asks of it."""


class GrammarError(SamplingError):
    """A grammar, regex or JSON schema that can't be used, or whose library is not installed."""
