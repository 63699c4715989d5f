"""`qbpass qualify BUNDLE --prompts F.jsonl`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbpass.arms_picture import write_picture
from qbpass.arms_table import show_arms
from qbpass.commands.options import (
    Draft,
    FreshDraft,
    Json,
    Lean,
    Policy,
    Provider,
    Threads,
    Width,
    checked_draft,
    checked_policy,
    session_spec,
)
from qbpass.json_file import write_json
from qbpass.screen import Steps


def qualify(
    bundle: Annotated[Path, typer.Argument(help="A folder that `qbpass rewrite` wrote.")],
    prompts: Annotated[
        Path, typer.Option("--prompts", metavar="FILE.jsonl", help='One {"id", "domain", "prompt"} a line.')
    ],
    arms: Annotated[
        str | None,
        typer.Option(
            "--arms",
            help="R serial reference, C_MQ plain speculation, C_QB, C_PQ, C_GS repaired; M_MQ, M_QB, M_PQ, M_GS the "
            "same without speculation. [default: R,C_MQ and what the bundle can be repaired by]",
        ),
    ] = None,
    draft: Draft = "ngram",
    k: Width = None,
    policy: Policy = "adaptive",
    fresh_draft: FreshDraft = False,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Tokens of a prompt.")] = 128,
    replay_rows: Annotated[
        int, typer.Option("--replay-rows", min=0, help="Rows of a prompt whose logits the forced replay compares.")
    ] = 16,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="How often each arm runs each prompt.")] = 1,
    raw: Annotated[bool, typer.Option("--raw", help="Plain text: no chat template.")] = False,
    provider: Provider = "cpu",
    threads: Threads = None,
    lean: Lean = False,
    json: Json = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Write the arms as a picture.")
    ] = None,
) -> None:
    """Run every arm on every prompt and compare with serial decoding: tokens, stop reasons, and logits byte for byte.

    Exit code: 0 every repaired arm equals the reference, 1 some does not, 2 unusable input.
    """
    from qbpass.evidence.options import QualifyOptions, default_arms
    from qbpass.evidence.prompts import read_prompts
    from qbpass.evidence.qualify import qualify as qualify_bundle
    from qbpass.models.tokenizer import TextCodec
    from qbpass.rewrites.bundle import open_bundle

    spec = session_spec(provider, threads)
    opened = open_bundle(bundle)
    named = default_arms(opened.manifest) if arms is None else arms.split(",")
    options = QualifyOptions(
        arms=tuple(name.strip() for name in named if name.strip()),
        draft=checked_draft(draft),
        k=k,
        policy=checked_policy(policy),
        fresh_draft=fresh_draft,
        max_new_tokens=max_new_tokens,
        replay_rows=replay_rows,
        repeats=repeats,
        lean=lean,
    )
    files = opened.reference.tokenizer_files
    read = read_prompts(prompts, TextCodec(files) if "tokenizer.json" in files else None, raw)
    with Steps() as steps:
        report = qualify_bundle(opened, read, options, spec, steps.count)
    if json is not None:
        write_json(json, report.to_json())
    if plot is not None:
        write_picture(plot, report)
    if str(json) != "-":
        show_arms(report)
    raise typer.Exit(0 if report.exact else 1)
