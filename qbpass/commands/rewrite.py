"""`qbpass rewrite MODEL OUT`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from qbpass.admission_table import show_admission
from qbpass.commands.options import OptionError, Provider, Threads, checked_prefill, chosen, session_spec
from qbpass.lowering_lines import lowering_lines
from qbpass.models.session import SessionSpec
from qbpass.repair_lines import repair_lines
from qbpass.screen import Steps, say
from qbpass.weight_lines import weight_lines

if TYPE_CHECKING:
    from qbpass.models.decoder import Decoder
    from qbpass.rewrites.bundle import Bundle
    from qbpass.rewrites.plan import AnyLayout, RewritePlan
    from qbpass.rewrites.planner import RewriteRefused

Emit = Literal["guarded", "specialized", "widths"]


def rewrite(
    model: Annotated[Path, typer.Argument(help="An .onnx file, an exporter's folder or a bundle.")],
    out: Annotated[Path, typer.Argument(help="The bundle's folder.")],
    layout: Annotated[
        str,
        typer.Option(
            "--layout",
            metavar="auto|qb|pq|gs",
            help="auto: of the layouts not proven wrong here, the one whose calls take least time here. gs: the rows "
            "of any decoder one at a time.",
        ),
    ] = "auto",
    prefill: Annotated[
        str,
        typer.Option(
            "--prefill",
            metavar="whole|chunks:N|one",
            help="How the reference reads its prompt: in one call, N tokens a call, or one token a call. Part of the "
            "reference: another way gives other bits.",
        ),
    ] = "whole",
    phase_mask: Annotated[
        int | None,
        typer.Option(
            "--phase-mask",
            min=0,
            max=15,
            help="Where the layout is active: 1 target prefill, 2 target continuation, 4 draft prefill, 8 draft "
            "continuation, or a sum of these; 1 and 4 need --prefill one. [default: 2, or 3 with --prefill one]",
        ),
    ] = None,
    max_queries: Annotated[int, typer.Option("--max-queries", min=1, max=64, help="Rows of a verification call.")] = 4,
    emit: Annotated[
        str,
        typer.Option(
            "--emit",
            metavar="guarded|specialized|widths",
            help="One graph with a phase input, or two without; widths: beside the guarded one a graph for each number "
            "of rows, of decoders whose every attention is a fused operator, in a session each: calls of few rows cost "
            "a few percent less. Give --pack-weights, too, or each session holds packed weights of its own.",
        ),
    ] = "guarded",
    copy_weights: Annotated[
        bool,
        typer.Option(
            "--copy-weights",
            help="Copy the weights into the bundle, so that it needs the model's folder no more. Without it the bundle "
            "names the model's own weight files by folder and digest, and holds only those weights that ONNX Runtime's "
            "optimizer changed.",
        ),
    ] = False,
    pack_weights: Annotated[
        bool,
        typer.Option(
            "--pack-weights",
            help="Copy the weights into the bundle as the CPU's kernels pack them, too. Every session over them reads "
            "one copy in memory (rows alone, --emit specialized, several engines, several processes); on disk they "
            "take about twice the model's size.",
        ),
    ] = False,
    force_repair: Annotated[
        list[str] | None,
        typer.Option(
            "--force-repair",
            metavar="OPERATOR",
            help="Run this operator outside attention one row at a time though no trial shows that its rows depend on "
            "each other. Can be given more than once.",
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="With --layout auto: decide again what was decided before.")
    ] = False,
    provider: Provider = "cpu",
    threads: Threads = None,
) -> None:
    """Rewrite a decoder into a bundle whose verification calls evaluate every row as serial decoding would.

    Exit code: 0 written, 1 refused (a site is not admitted, or every form was proven wrong here), 2 unusable input.
    """
    from qbpass.models_at import own_decoder
    from qbpass.rewrites.planner import RewriteRefused

    wanted = cast('AnyLayout | Literal["auto"]', chosen("--layout", layout, ("auto", "qb", "pq", "gs")))
    emission = cast(Emit, chosen("--emit", emit, ("guarded", "specialized", "widths")))
    asked: dict[str, Any] = {
        "phase_mask": phase_mask,
        "prefill": checked_prefill(prefill),
        "max_queries": max_queries,
        "emit": emission,
        "copy_weights": copy_weights,
        "pack": pack_weights,
        "fresh": fresh,
        "force_repairs": force_repair or (),
    }
    if pack_weights and provider != "cpu":
        raise OptionError("--pack-weights is for --provider cpu: other providers pack nothing that is written")
    spec = session_spec(provider, threads)
    decoder = own_decoder(model)
    _ = decoder.contract  # raises where the interface has a problem
    try:
        bundle, plan = _write(decoder, out, wanted, spec, asked)
    except RewriteRefused as refused:
        _show_refusal(refused)
        raise typer.Exit(1) from None
    if bundle.manifest.choice is not None:
        for line in bundle.manifest.choice.lines():
            say(line)
        for candidate in bundle.manifest.choice.candidates:
            _show_trials(candidate.trials, candidate.layout)
    say(plan.text().splitlines()[0])
    for line in _forms(plan):
        say(line)
    for evidence in _distinct([*(site.evidence for site in plan.sites), *(chain.evidence for chain in plan.chains)]):
        for line in lowering_lines(evidence.get("lowering")):
            say(line)
        _show_trials(evidence["trials"], plan.layout)
    for line in repair_lines(plan.repairs, plan.repair_evidence):
        say(line)
    say(f"  {_head(plan.head_evidence)}")
    rows = bundle.manifest.whole["rows"]
    say(f"  the whole decoder: unknown, {rows} rows tried and none differs from the reference's")
    size = sum(file.stat().st_size for file in bundle.folder.rglob("*") if file.is_file())
    say(f"{bundle.folder}: a bundle of {size / 2**20:,.1f} MiB, for {spec.threads} thread(s) on {spec.provider}")
    for line in weight_lines(bundle, decoder):
        say(f"  {line}")


def _write(
    decoder: Decoder,
    out: Path,
    layout: AnyLayout | Literal["auto"],
    spec: SessionSpec,
    asked: Mapping[str, Any],
) -> tuple[Bundle, RewritePlan]:
    """asked: the options of write_bundle. Raises RewriteRefused."""
    from qbpass.rewrites.bundle_writer import write_bundle
    from qbpass.runtime.whole_trial import whole_trial

    with Steps() as steps:
        machine = partial(whole_trial, spec=spec)
        bundle, plan, _ = write_bundle(decoder, out, layout, spec, machine=machine, progress=steps.text, **asked)
    return bundle, plan


def _show_refusal(refused: RewriteRefused) -> None:
    """Why nothing was written: the sites' codes, or what proved the last form wrong."""
    _show_trials(refused.trials)
    if refused.report is not None:
        show_admission(refused.report, every_site=False)
    typer.echo(f"qbpass: {refused}", err=True)


def _head(evidence: Mapping[str, Any]) -> str:
    """What was tried of the language-model head before its rows were left out of a prompt's call, or kept."""
    if "rows" in evidence:
        return (
            f"head, a prompt's last row alone: unknown, among {len(evidence['rows'])} numbers of rows up to "
            f"{max(evidence['rows'])} none changes it"
        )
    if evidence["verdict"] == "false":
        witness = evidence["witness"]
        return (
            f"head, a prompt's last row alone: false, among {witness['rows']} rows it differs by "
            f"{witness['max_abs_difference']:.3g} (seed {witness['seed']}): all rows are computed, as exported"
        )
    return f"head: {evidence['reason']}: all rows are computed, as exported"


def _forms(plan: RewritePlan) -> list[str]:
    """One line for neighbouring sites of one kind and form (plan.text() has one for each)."""
    lines = []
    for key, group in groupby(plan.sites, lambda s: (s.site.heads, s.site.kv_heads, s.site.head_dim, s.form)):
        layers = [entry.site.layer for entry in group]
        heads, kv_heads, head_dim, form = key
        lines.append(
            f"  layers {layers[0]}–{layers[-1]}: heads {heads}/{kv_heads}, d {head_dim}, QK {form.qk}, AV {form.av}"
            + (", keys clipped" if form.clip == "keys" else "")
            + (", spare rows" if form.spare else "")
        )
    for shape, chains in groupby(
        plan.chains, lambda c: (c.site.operator, c.site.heads, c.site.kv_heads, c.site.head_dim)
    ):
        numbers = [entry.site.layer for entry in chains]
        operator, heads, kv_heads, head_dim = shape
        lines.append(
            f"  layers {numbers[0]}–{numbers[-1]}: heads {heads}/{kv_heads}, d {head_dim}, {operator} query by query"
        )
    return lines


def _distinct(evidence: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sites of one kind share their evidence: each is shown once."""
    kept: list[Mapping[str, Any]] = []
    for entry in evidence:
        if entry not in kept:
            kept.append(entry)
    return kept


def _show_trials(trials: Sequence[Mapping[str, Any]], layout: str | None = None) -> None:
    for trial in trials:
        tried = trial.get("form") or f"QK {trial['qk']}, AV {trial['av']}"
        form = f"{layout.upper() + ': ' if layout else ''}{tried}"
        residues = trial["exact_extents"]["residues"] if "exact_extents" in trial else ()
        if residues:
            form += f", exact extents n % {trial['exact_extents']['modulus']} in {list(residues)}"
        if trial.get("clip") == "keys":
            form += ", keys clipped"
        if trial.get("spare"):
            form += ", spare rows"
        witness = trial["witness"]
        if trial["verdict"] == "not run":
            say(f"  {form}: not run, {trial['reason']}")
            continue
        if witness is None:
            say(f"  {form}: unknown, {trial['rows']} rows tried and none differs from serial decoding's")
            continue
        say(
            f"  {form}: false, {trial['rows_differing']} of {trial['rows']} rows differ from serial decoding's; "
            f"first row {witness['row']} of {witness['queries']} behind {witness['past']} positions, "
            f"by {witness['max_abs_difference']:.3g} (seed {witness['seed']})"
        )
