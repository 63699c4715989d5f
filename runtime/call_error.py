"""A failing ONNX Runtime call as one line."""

from __future__ import annotations

from typing import Any

from qbpass.models.errors import QbpassError
from qbpass.models.session import one_line


class CallError(QbpassError):
    """ONNX Runtime failed while running a graph that it had loaded."""


def session_run(session: Any, binding: Any, *options: Any) -> None:
    """Run a bound call, with these run options if any. Raises CallError with ONNX Runtime's own words."""
    try:
        session.run_with_iobinding(binding, *options)
    except Exception as error:  # ONNX Runtime raises a family of private types
        raise CallError(f"ONNX Runtime failed in a call: {one_line(error)}") from error
