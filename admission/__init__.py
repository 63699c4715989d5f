"""Which attention sites of a decoder may be rewritten, and why not the others.

Resolved on first use, so that importing the dataclasses alone (`qbpass.admission.site`, `.report`) costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qbpass.admission.discover import discover

__all__ = ["discover"]

_HOMES = {"discover": "qbpass.admission.discover"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
