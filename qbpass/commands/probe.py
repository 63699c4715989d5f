"""`qbpass probe MODEL|BUNDLE`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbpass.commands.options import Json, OptionError, Provider, Threads, session_spec
from qbpass.json_file import write_json
from qbpass.probe_options import ProbeOptions
from qbpass.probe_table import show_probes, show_replay
from qbpass.probing import probe_model, replay_witness
from qbpass.screen import Steps


def probe(
    model: Annotated[
        str | None, typer.Argument(help="An .onnx file, an exporter's folder, a bundle, or builtin:operators.")
    ] = None,
    json: Json = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", metavar="FOLDER", help="Run a witness again instead of probing.")
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="NAMES", help="Probes or operators, separated by commas.")
    ] = None,
    queries: Annotated[int, typer.Option("--queries", min=2, max=16, help="Rows of the widest block.")] = 4,
    past: Annotated[int, typer.Option("--past", min=1, help="Rows in the KV cache of the calls that are timed.")] = 128,
    no_curve: Annotated[bool, typer.Option("--no-curve", help="Time no calls.")] = False,
    every_case: Annotated[bool, typer.Option("--all", help="A row for each kind, those without findings too.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what the cache holds.")] = False,
    witnesses: Annotated[
        Path | None, typer.Option("--witnesses", metavar="DIR", help="Where witnesses go. [default: the cache]")
    ] = None,
    provider: Provider = "cpu",
    threads: Threads = None,
) -> None:
    """Try to prove each kernel's row invariance wrong on this machine, and time calls of 1 to 8 rows.

    What a trial disproves is false, with a witness; everything else is unknown. Exit code: 0 done; with --replay 1 the
    difference shows here, 0 it does not; 2 unusable input.
    """
    if (model is None) == (replay is None):
        raise OptionError("give either a MODEL to probe or a witness to --replay")
    if replay is not None:
        raise typer.Exit(_replayed(replay, json))
    assert model is not None
    names = tuple(name.strip() for name in (only or "").split(",") if name.strip())
    spec = session_spec(provider, threads)
    options = ProbeOptions(spec, names, None if no_curve else past, queries, fresh, witnesses)
    with Steps() as steps:
        report = probe_model(model, options, steps)
    if json is not None:
        write_json(json, report.model_dump(mode="json"))
    if json is None or str(json) != "-":
        show_probes(report, every_case=every_case)


def _replayed(folder: Path, json: Path | None) -> int:
    """The exit code: 1 where the difference shows here, 0 where it does not."""
    found = replay_witness(folder)
    if json is not None:
        value = {"reproduced": found.reproduced, "bytes_as_recorded": found.bytes_as_recorded}
        write_json(json, {**value, "unlike": list(found.unlike), "witness": found.witness.model_dump(mode="json")})
    if json is None or str(json) != "-":
        show_replay(found)
    return int(found.reproduced)
