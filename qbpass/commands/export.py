"""`qbpass export SOURCE OUT`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbpass.screen import Steps, say


def export(
    source: Annotated[
        str, typer.Argument(help="A Hugging Face folder, a .gguf file, builtin:smollm2-135m or builtin:tiny.")
    ],
    out: Annotated[Path, typer.Argument(help="The new folder.")],
    attention: Annotated[
        str, typer.Option("--attention", metavar="eager|sdpa|onnx", help="How attention is written into the graph.")
    ] = "eager",
    opset: Annotated[
        int | None, typer.Option("--opset", help="ONNX operator set. [default: 18 eager, 20 sdpa, 23 onnx]")
    ] = None,
) -> None:
    """Export a decoder to ONNX in float32. Needs the extra qbpass[export]."""
    from qbpass.models.export.source import export_source

    with Steps() as steps:
        folder = export_source(source, out, attention=attention, opset=opset, progress=steps.fraction)
    size = sum(file.stat().st_size for file in folder.iterdir())
    say(f"{folder}: {', '.join(sorted(file.name for file in folder.iterdir()))} ({size / 2**20:,.1f} MiB)")
