"""Engines for the arms of a qualification, sessions shared where the graph is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qbpass.evidence.options import REPAIRED, QualifyOptions
from qbpass.models.session import SessionSpec
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.bundle import Bundle, plan_for
from qbpass.rewrites.plan import RewritePlan
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.drafting.drafts import Drafts
from qbpass.runtime.drafting.named import POLICIES
from qbpass.runtime.engine import Engine
from qbpass.runtime.micro_batches import MicroBatchTarget
from qbpass.runtime.open_target import BundleTarget, open_target
from qbpass.runtime.placed_session import open_placed
from qbpass.runtime.prefill import target_prompt_rows
from qbpass.runtime.serial_target import SerialTarget
from qbpass.runtime.target import Target


@dataclass(frozen=True)
class Arm:
    """repaired: promised to equal the reference; the native arms are not, and decide nothing."""

    name: str
    target: Target
    engine: Engine
    repaired: bool


def build_arms(
    bundle: Bundle,
    options: QualifyOptions,
    spec: SessionSpec,
    progress: Callable[[str], None] = lambda text: None,
    drafts: Drafts | None = None,
) -> list[Arm]:
    """Every arm asked for, in the order asked. Arms of one layout share a target: one request runs at a time.

    Raises RewriteRefused where a layout is falsified here, DraftError where an arm can't have its drafter.
    """
    drafts = drafts or Drafts(options.draft, bundle, spec)
    targets = Targets(bundle, spec, progress, lean=options.lean)
    arms = []
    for name in options.arms:
        target = targets.of(name.removeprefix("M_").removeprefix("C_"))
        if name.startswith("C_"):
            engine = Engine(target, drafts.drafter(target), POLICIES[options.policy](target.max_queries))
        else:
            engine = Engine(target)
        arms.append(Arm(name, target, engine, repaired=name[2:] in REPAIRED))
    return arms


class Targets:
    """The reference and a target for each layout, sessions shared where the graph is the same.

    A layout that the bundle does not hold is planned and rewritten in memory, from the bundle's own reference; but
    GS runs the reference itself, row by row.
    """

    def __init__(self, bundle: Bundle, spec: SessionSpec, progress: Callable[[str], None], *, lean: bool = False):
        self._lean = lean
        self._bundle, self._spec, self._progress = bundle, spec, progress
        self._own: BundleTarget | None = None
        self._made: dict[str, Target] = {}

    def of(self, name: str) -> Target:
        """name: R, or a layout's (options.LAYOUT_NAMES). Raises RewriteRefused where the layout is falsified here."""
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Target:
        bundle, spec = self._bundle, self._spec
        if name == "MQ":
            return self._bundles_own().native(spec)
        if name == bundle.manifest.layout.upper():
            return self._bundles_own()
        if name == "GS":
            serial = self.of("R")
            assert isinstance(serial, SerialTarget)
            return MicroBatchTarget.over(serial, spec, bundle.manifest.max_queries)
        self._progress(f"loading {name}")
        if name == "R":
            return SerialTarget.from_bundle(bundle, spec)
        plan = plan_for(bundle, "qb" if name == "QB" else "pq", spec)
        return block_target_of(bundle, plan, spec, target_prompt_rows(bundle.manifest))

    def _bundles_own(self) -> BundleTarget:
        if self._own is None:
            self._progress(f"loading {self._bundle.manifest.layout.upper()}")
            serial = None if self._lean else self._made.get("R")
            session = serial.session if isinstance(serial, SerialTarget) else None
            self._own = open_target(self._bundle, self._spec, lean=self._lean, reference=session)
        return self._own


def block_target_of(bundle: Bundle, plan: RewritePlan, spec: SessionSpec, prefill_rows: int | None) -> BlockTarget:
    """A target over the guarded graph of a plan that is not the bundle's own, rewritten in memory."""
    graph = rewrite_graph(bundle.reference, plan).SerializeToString()
    session = open_placed(graph, spec, weights=bundle.weights)
    return BlockTarget.of_plan(session, bundle.reference, plan, spec, prefill_rows=prefill_rows)
