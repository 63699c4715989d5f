"""`qbpass admit MODEL`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbpass.admission_table import show_admission
from qbpass.commands.options import Json, Provider, Threads, session_spec
from qbpass.json_file import write_json
from qbpass.models_at import frozen_decoder
from qbpass.screen import Steps, say


def admit(
    model: Annotated[Path, typer.Argument(help="An .onnx file, an exporter's folder or a bundle.")],
    json: Json = None,
    every_site: Annotated[bool, typer.Option("--all", help="A row for each site, equal ones too.")] = False,
    provider: Provider = "cpu",
    threads: Threads = None,
) -> None:
    """Say of each attention whether it may be rewritten, and if not why not.

    Exit code: 0 all admitted, 1 some refused, 2 unusable input.
    """
    from qbpass.admission.admit import admit as admit_decoder

    spec = session_spec(provider, threads)
    with Steps() as steps, frozen_decoder(model, spec, steps.text) as frozen:
        report = admit_decoder(frozen)
    if json is not None:
        write_json(json, report.to_json())
    if json is None or str(json) != "-":
        show_admission(report, every_site=every_site)
        say("The graph that counts is the frozen one: what ONNX Runtime's own optimizer leaves of the model.")
    raise typer.Exit(0 if report.admitted else 1)
