"""What tests of rewritten decoders share: plans, targets over them, and the product's own replay."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from qbpass.admission.admit import admit
from qbpass.admission.site import AttentionSite
from qbpass.evidence.forced_replay import ReplayCount, replay, serial_rows
from qbpass.models.decoder import Decoder
from qbpass.models.session import SessionSpec, open_session
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.bundle import Bundle, open_bundle
from qbpass.rewrites.extents import ExtentRule
from qbpass.rewrites.manifest import Interface
from qbpass.rewrites.plan import Layout, RewritePlan, SiteForm, SitePlan
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.serial_target import SerialTarget
from qbpass.runtime.target import Target

SPEC = SessionSpec(threads=2)


def sites_of(reference: Decoder) -> tuple[AttentionSite, ...]:
    report = admit(reference)
    assert report.admitted, report.to_json()
    return tuple(entry.site for entry in report.sites if entry.site is not None)


def plan_of(
    bundle: Bundle, layout: Layout = "qb", *, phase_mask: int = 2, extents: ExtentRule | None = None
) -> RewritePlan:
    """The form the bundle's own falsifier left, in any layout and phases; `extents` in place of the measured rule."""
    entry = bundle.manifest.sites[0]
    rule = bundle.extents if extents is None else extents
    form = SiteForm(entry.qk, entry.av, rule, entry.clip)  # type: ignore[arg-type]
    return RewritePlan(layout, phase_mask, 4, tuple(SitePlan(site, form) for site in sites_of(bundle.reference)))


def block_target(
    bundle: Bundle, plan: RewritePlan, model: onnx.ModelProto | None = None, *, prefill_rows: int | None = None
) -> BlockTarget:
    """A target over the guarded graph of `plan` (or `model`), its weights in the bundle's folder."""
    graph = (model or rewrite_graph(bundle.reference, plan)).SerializeToString()
    return BlockTarget(
        open_session(graph, SPEC, weights=bundle.weights),
        Interface.of(bundle.reference.contract),
        SPEC,
        extents=plan.extents,
        segments=plan.segments,
        max_queries=plan.max_queries,
        context_length=bundle.manifest.context_length,
        phase_mask=plan.phase_mask,
        chained=frozenset(chain.site.layer for chain in plan.chains),
        prefill_rows=prefill_rows,
    )


def serial_target(bundle: Bundle, prefill: str | None = None) -> SerialTarget:
    """prefill: another way to read the prompt than the bundle's."""
    if prefill is None:
        return SerialTarget.from_bundle(bundle, SPEC)
    return SerialTarget.from_frozen(bundle.reference, SPEC, prefill=prefill)


def random_tokens(bundle: Bundle, count: int, seed: int = 0) -> tuple[int, ...]:
    vocabulary = bundle.reference.contract.vocab_size
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, vocabulary, count))


def replayed(
    bundle: Bundle,
    target: Target,
    prompt: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    prefill: str | None = None,
) -> ReplayCount:
    """The product's forced replay of `target` against serial decoding: 13 rows behind 9 unless told otherwise."""
    prompt = random_tokens(bundle, 9, 1) if prompt is None else prompt
    tokens = random_tokens(bundle, 13, 2) if tokens is None else tokens
    count = ReplayCount()
    replay(target, "prompt", prompt, tokens, _serial_rows(bundle.folder, tuple(prompt), tuple(tokens), prefill), count)
    return count


@cache
def _serial_rows(folder: Path, prompt: tuple[int, ...], tokens: tuple[int, ...], prefill: str | None) -> np.ndarray:
    """Serial rows of one bundle's reference: many tests compare with the same ones."""
    return serial_rows(serial_target(open_bundle(folder), prefill), prompt, tokens)
