"""Options that several commands share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from qbpass.models.errors import QbpassError
from qbpass.models.session import SessionSpec

Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads of a session. [default: number of cores, at most 16]"),
]
Provider = Annotated[
    str,
    typer.Option(
        "--provider",
        metavar="cpu|cuda|cuda:tf32|openvino",
        help="ONNX Runtime's execution provider. cuda:tf32: fp32 products round as TF32, another reference.",
    ),
]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON to FILE (- for stdout).")
]
Draft = Annotated[
    str,
    typer.Option(
        "--draft",
        metavar="none|ngram|suffix|self|PATH|suffix+self|...",
        help="Who proposes tokens: nobody, the n-grams seen so far, the longest suffix that was there before, the "
        "model's own weights quantized, or another model of the same tokenizer (a bundle, or an export's folder). "
        "suffix+self looks up first, and asks the model where nothing long enough is found.",
    ),
]
FreshDraft = Annotated[
    bool,
    typer.Option("--fresh-draft", help="Decide anew how --draft self quantizes, whatever was decided here before."),
]
Width = Annotated[
    int | None,
    typer.Option("-k", min=0, help="The most tokens proposed in a round. [default: what the bundle's width allows]"),
]
Policy = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="adaptive|fixed",
        help="How many tokens a round proposes: as many as pay by what is measured, down to none; or as many as fit.",
    ),
]
Lean = Annotated[
    bool,
    typer.Option(
        "--lean",
        help="One session for calls of any width. Bundles of fused operators that share their cache otherwise have a "
        "second one, of the frozen graph, for rows alone, and those of --emit widths one for each number of rows: "
        "faster, and each holds the packed weights once more unless the bundle was made with --pack-weights.",
    ),
]

DRAFTERS = ("none", "ngram", "suffix", "self")
POLICIES = ("adaptive", "fixed")


class OptionError(QbpassError):
    """An option's value that this version can't do."""


def session_spec(provider: str, threads: int | None) -> SessionSpec:
    """Raises ProviderError where the installed ONNX Runtime does not have the provider, before any work is done."""
    tf32 = provider == "cuda:tf32"
    spec = SessionSpec("cuda" if tf32 else provider, use_tf32=tf32)
    if threads is not None:
        spec = replace(spec, threads=threads)
    spec.provider_list()
    return spec


def checked_draft(draft: str) -> str:
    """Raises OptionError for a drafter that this version does not have."""
    first, _, second = draft.partition("+")
    if draft in DRAFTERS or Path(draft).exists():
        return draft
    if first in ("ngram", "suffix") and (second == "self" or (second not in DRAFTERS and Path(second).exists())):
        return draft
    if "/" in draft or "\\" in draft:
        raise OptionError(f"--draft {draft}: there is no such file or folder")
    known = ", ".join(DRAFTERS)
    raise OptionError(f"this version has no --draft {draft}: choose one of {known}, or the path of a model")


def checked_policy(policy: str) -> str:
    """Raises OptionError for a policy that this version does not have."""
    return chosen("--policy", policy, POLICIES)


def checked_prefill(prefill: str) -> str:
    """Raises OptionError for what is not whole, one, or chunks of at least two tokens."""
    number = prefill.removeprefix("chunks:")
    if prefill == "chunks:1":
        raise OptionError("--prefill chunks:1 is one token a call: write --prefill one")
    if prefill in ("whole", "one") or (
        number != prefill and number.isascii() and number.isdigit() and number[0] != "0" and len(number) < 10
    ):
        return prefill
    raise OptionError(f"this version has no --prefill {prefill[:60]}: choose whole, one, or chunks:N such as chunks:16")


def chosen(option: str, value: str, known: tuple[str, ...]) -> str:
    """`value`, which is one of `known`. Raises OptionError where this version does not have it."""
    if value not in known:
        raise OptionError(f"this version has no {option} {value}: choose one of {', '.join(known)}")
    return value
