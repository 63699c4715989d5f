"""Engines for the arms of a qualification, sessions shared where the graph is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qbpass.evidence.options import QualifyOptions
from qbpass.models.session import SessionSpec, open_session
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.bundle import Bundle, plan_for
from qbpass.rewrites.plan import Layout
from qbpass.runtime.block_target import BlockTarget, target_prompt_rows
from qbpass.runtime.drafter import Drafter, NoDrafter
from qbpass.runtime.engine import Engine
from qbpass.runtime.ngram import NgramDrafter
from qbpass.runtime.serial_target import SerialTarget
from qbpass.runtime.target import Target


@dataclass(frozen=True)
class Arm:
    """repaired: promised to equal the reference; C_MQ is not, and decides nothing."""

    name: str
    target: Target
    engine: Engine
    repaired: bool


def build_arms(
    bundle: Bundle, options: QualifyOptions, spec: SessionSpec, progress: Callable[[str], None] = lambda text: None
) -> list[Arm]:
    """Every arm asked for, in the order asked. R is the frozen graph itself; the others run guarded graphs.

    A layout that the bundle does not hold is planned and rewritten in memory, from the bundle's own reference.
    Raises RewriteRefused where such a layout is falsified here.
    """
    targets: dict[Layout, BlockTarget] = {}

    def block(layout: Layout) -> BlockTarget:
        if layout not in targets:
            progress(f"loading {layout.upper()}")
            targets[layout] = _block_target(bundle, layout, spec)
        return targets[layout]

    arms = []
    for name in options.arms:
        target: Target
        if name == "R":
            progress("loading R")
            target = SerialTarget.from_bundle(bundle, spec)
        elif name == "C_MQ":
            target = block(bundle.manifest.layout).native(spec)
        else:
            target = block("qb" if name == "C_QB" else "pq")
        drafter: Drafter = NgramDrafter() if name != "R" and options.draft == "ngram" else NoDrafter()
        arms.append(Arm(name, target, Engine(target, drafter), repaired=name in ("C_QB", "C_PQ")))
    return arms


def _block_target(bundle: Bundle, layout: Layout, spec: SessionSpec) -> BlockTarget:
    if layout == bundle.manifest.layout:
        return BlockTarget.from_bundle(bundle, spec)
    plan = plan_for(bundle, layout, spec)
    graph = rewrite_graph(bundle.reference, plan).SerializeToString()
    return BlockTarget(
        open_session(graph, spec, weights=bundle.weights),
        bundle.manifest.interface,
        spec,
        extents=plan.extents,
        segments=plan.segments,
        max_queries=plan.max_queries,
        context_length=bundle.manifest.context_length,
        phase_mask=plan.phase_mask,
        head=plan.head,
        chained=frozenset(chain.site.layer for chain in plan.chains),
        prefill_rows=target_prompt_rows(bundle.manifest),
    )
