"""What a bundle holds of its weights, and what it leaves with the model: said in lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qbpass.rewrites.bundle import Bundle


def weight_lines(bundle: Bundle) -> list[str]:
    """One line a weight file."""
    lines = []
    for location, file in bundle.manifest.weights.items():
        size = f"{file.bytes / 2**20:,.1f} MiB"
        if file.folder is None:
            lines.append(f"{location}: {size} of weights, in the bundle")
        else:
            lines.append(f"{Path(file.folder) / location}: {size} of weights, read where they are")
    return lines
