"""Errors for people: one line that says what is wrong and what to do. The command line prints it and exits with 2.

Expected refusals are not errors: they are `Diagnostic` values in an admission report.
"""


class QbpassError(Exception):
    """Base of every error a user can meet. `str(error)` is one line."""


class ModelFileError(QbpassError):
    """The file is not a readable ONNX model, or its external data is missing, truncated or outside its folder."""


class ContractError(QbpassError):
    """The graph is readable but is not a decoder that qbpass can run (no KV inputs, last-token-only logits, ...)."""


class ExportError(QbpassError):
    """A source could not be exported, or what exporting needs is not installed."""


class ProviderError(QbpassError):
    """An execution provider that was asked for is not there or did not load."""


class BundleError(QbpassError):
    """A bundle is damaged, or its recipe does not match this process."""


class PromptError(QbpassError):
    """A prompt or a prompt file can't be used (empty, too long for the context, not JSON lines, ...)."""
