"""`qbpass admit MODEL`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qbpass.admission_table import show_admission
from qbpass.commands.options import Json, OptionError, Provider, Threads, session_spec
from qbpass.json_file import write_json, write_text
from qbpass.models_at import frozen_decoder, own_decoder
from qbpass.screen import Steps

if TYPE_CHECKING:
    from qbpass.models.decoder import Decoder


def admit(
    model: Annotated[Path, typer.Argument(help="An .onnx file, an exporter's folder or a bundle.")],
    json: Json = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the report as a page to FILE (- for stdout).")
    ] = None,
    every_site: Annotated[bool, typer.Option("--all", help="A row for each site, equal ones too.")] = False,
    as_exported: Annotated[
        bool, typer.Option("--as-exported", help="Look at the file's own graph; needs no weights and no ONNX Runtime.")
    ] = False,
    provider: Provider = "cpu",
    threads: Threads = None,
) -> None:
    """Say of each attention whether it may be rewritten, and if not why not.

    Exit code: 0 all admitted, 1 some refused, 2 unusable input.
    """
    from qbpass.admission.admit import admit as admit_decoder
    from qbpass.admission.dataflow import Flow
    from qbpass.reports.admission_document import admission_document
    from qbpass.reports.admission_page import admission_page
    from qbpass.reports.looked_at import LookedAt

    printed = [str(path) == "-" for path in (json, html) if path is not None]
    if sum(printed) > 1:
        raise OptionError("--json - and --html - would both go to stdout: give one of them a file")
    with Steps() as steps, _decoder(model, as_exported, provider, threads, steps) as decoder:
        flow = Flow.of(decoder)
        report, looked_at = admit_decoder(decoder, flow), LookedAt.of(decoder, model)
        document = None if json is None else admission_document(report, decoder, looked_at).to_json()
        if html is not None:
            steps.text("drawing the page")
        page = None if html is None else admission_page(report, decoder, looked_at, flow)
    if json is not None and document is not None:
        write_json(json, document)
    if html is not None and page is not None:
        write_text(html, page)
    if not any(printed):
        show_admission(report, looked_at, every_site=every_site)
    raise typer.Exit(0 if report.admitted else 1)


@contextmanager
def _decoder(model: Path, as_exported: bool, provider: str, threads: int | None, steps: Steps) -> Iterator[Decoder]:
    """The decoder to look at. As exported, no session is made, so the provider need not be there."""
    if as_exported:
        yield own_decoder(model, weights="ignored")
        return
    with frozen_decoder(model, session_spec(provider, threads), steps.text) as frozen:
        yield frozen
