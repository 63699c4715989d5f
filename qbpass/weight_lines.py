"""What a bundle holds of its weights, and what it leaves with the model: said in lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qbpass.models.decoder import Decoder
    from qbpass.rewrites.bundle import Bundle


def weight_lines(bundle: Bundle, model: Decoder) -> list[str]:
    """One line a weight file, and one where the model's weights lie inside its graph."""
    lines = []
    for location, file in bundle.manifest.weights.items():
        size = f"{file.bytes / 2**20:,.1f} MiB"
        if file.folder is None:
            lines.append(f"{location}: {size} of weights, in the bundle")
        else:
            lines.append(f"{Path(file.folder) / location}: {size} of weights, read where they are")
    inside = sum(len(tensor.raw_data) for tensor in model.model.graph.initializer)
    if inside > 2**20:
        lines.append(
            f"{model.path.name} holds {inside / 2**20:,.1f} MiB of weights inside the graph, so they are copied; of a "
            "model saved with external data they are not"
        )
    return lines
