"""Which phases need the layout: every mask of the four against serial evaluation of target and draft.

Target and draft are the same model in two roles. Under every mask both read their prompts in micro-batches of up to
max_queries rows and their continuations in blocks, so that a phase without its bit runs several rows in the native
graph: what passes does so because of its bits. The reference reads its prompt one row a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qbpass.evidence.arms import block_target_of
from qbpass.evidence.forced_replay import ReplayCount, replay, serial_rows
from qbpass.evidence.prompts import Prompt
from qbpass.models.errors import BundleError
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle, check_recipe
from qbpass.rewrites.phases import ALL_PHASES
from qbpass.rewrites.plan import RewritePlan
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Proposal
from qbpass.runtime.endpoint import Endpoint
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.micro_batches import MicroBatchTarget
from qbpass.runtime.model_drafter import ModelDrafter
from qbpass.runtime.serial_target import SerialTarget

ALL_MASKS = range(ALL_PHASES + 1)


@dataclass(frozen=True)
class MaskResult:
    """What equals serial evaluation under one mask, in prompts; rows are logit rows of the target's forced replay."""

    mask: int
    prompts: int
    endpoints: int
    kv: int  # every byte of the target's KV cache behind the request
    rows: int
    rows_equal: int
    proposals: int  # every token the draft proposed
    draft_kv: int

    @property
    def target_passes(self) -> bool:
        return self.endpoints == self.kv == self.prompts and self.rows_equal == self.rows

    @property
    def passes(self) -> bool:
        """Target and draft alike."""
        return self.target_passes and self.proposals == self.draft_kv == self.prompts


def minimal(masks: Iterable[int]) -> list[int]:
    """Those that contain no other of them."""
    among = sorted(set(masks))
    return [mask for mask in among if not any(other != mask and other & mask == other for other in among)]


@dataclass(frozen=True)
class _Run:
    """One request of one pair of target and draft."""

    endpoint: Endpoint
    proposals: list[tuple[int, ...]]
    kv: list[bytes]
    draft_kv: list[bytes]


class _Recorded(ModelDrafter):
    """Writes down what it proposes."""

    def start(self, tokens: Sequence[int], rows: int) -> None:
        self.proposals: list[tuple[int, ...]] = []
        super().start(tokens, rows)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        proposal = super().propose(limit, fork)
        self.proposals.append(proposal.tokens)
        return proposal


def phase_masks(
    bundle: Bundle,
    plan: RewritePlan,
    prompts: Sequence[Prompt],
    spec: SessionSpec,
    *,
    masks: Iterable[int] = ALL_MASKS,
    max_new_tokens: int = 24,
    replay_rows: int = 8,
    k: int = 3,
    progress: Callable[[str, int, int], None] = lambda text, done, total: None,
) -> list[MaskResult]:
    """One result a mask. `plan` is rewritten once a mask, its table baked in; only its phase mask changes.

    Raises BundleError where the bundle's reference reads its prompt in calls of several rows, or is another process's.
    """
    check_recipe(bundle, spec)
    if bundle.manifest.recipe.prefill != "one":
        raise BundleError(
            f"the reference of {bundle.folder} reads its prompt in calls of several rows: rewrite with --prefill one"
        )
    stops = frozenset(bundle.manifest.eos_token_ids)
    requests = [Request(prompt.token_ids, max_new_tokens, stops, k) for prompt in prompts]
    serial = SerialTarget.from_bundle(bundle, spec)
    alone, drafting = (MicroBatchTarget.over(serial, spec, plan.max_queries) for _ in ("target", "draft"))
    wanted = [_run(alone, drafting, request) for request in requests]
    fed = [run.endpoint.token_ids[:replay_rows] for run in wanted]
    rows = [serial_rows(serial, request.prompt, tokens) for request, tokens in zip(requests, fed, strict=True)]
    results, masks = [], tuple(masks)
    for number, mask in enumerate(masks):
        progress(f"mask {mask}", number, len(masks))
        target = block_target_of(bundle, replace(plan, phase_mask=mask), spec, plan.max_queries)
        draft = target.draft(spec, plan.max_queries)
        runs = [_run(target, draft, request) for request in requests]
        count = _replayed(target, prompts, fed, rows)
        results.append(_compare(mask, runs, wanted, count))
    progress("done", len(masks), len(masks))
    return results


def _run(target: BlockTarget | MicroBatchTarget, draft: BlockTarget | MicroBatchTarget, request: Request) -> _Run:
    drafter = _Recorded(draft)
    endpoint, _trace = Engine(target, drafter).generate(request)
    return _Run(endpoint, drafter.proposals, *(_kv(each) for each in (target, draft)))


def _kv(target: BlockTarget | MicroBatchTarget) -> list[bytes]:
    layers = target.interface.layers if isinstance(target, BlockTarget) else target.contract.kv
    return [target.cached(index).tobytes() for index in range(2 * len(layers))]


def _replayed(
    target: BlockTarget, prompts: Sequence[Prompt], fed: Sequence[Sequence[int]], rows: Sequence[np.ndarray]
) -> ReplayCount:
    count = ReplayCount()
    for prompt, tokens, wanted in zip(prompts, fed, rows, strict=True):
        replay(target, prompt.id, prompt.token_ids, tokens, wanted, count)
    return count


def _compare(mask: int, runs: Sequence[_Run], wanted: Sequence[_Run], count: ReplayCount) -> MaskResult:
    def equal(part: str) -> int:
        return sum(getattr(run, part) == getattr(right, part) for run, right in zip(runs, wanted, strict=True))

    return MaskResult(
        mask=mask,
        prompts=len(runs),
        endpoints=equal("endpoint"),
        kv=equal("kv"),
        rows=count.rows,
        rows_equal=count.equal,
        proposals=equal("proposals"),
        draft_kv=equal("draft_kv"),
    )
