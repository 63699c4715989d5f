"""Which attention sites of a decoder may be rewritten, and why not the others.

Resolved on first use, so that importing the dataclasses alone (`qbpass.admission.site`, `.report`) costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qbpass.admission.admit import admit as admit
    from qbpass.admission.discover import discover as discover

__all__ = ["admit", "discover"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{name}"), name)
    return found
