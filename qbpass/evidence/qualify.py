"""Qualification: every arm on every prompt, endpoints and forced-replay rows against the serial reference.

Arms are interleaved prompt by prompt and their order turns, so that a slow minute of the machine falls on all of them.
The first prompt is run once before anything is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qbpass.evidence.arms import Arm, build_arms
from qbpass.evidence.fits import check_fit
from qbpass.evidence.forced_replay import ReplayCount, replay, serial_rows
from qbpass.evidence.options import QualifyOptions
from qbpass.evidence.prompts import Prompt
from qbpass.evidence.report import (
    ArmReport,
    FirstDifference,
    FirstRowDifference,
    PromptRatio,
    PromptReport,
    QualificationReport,
)
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle, check_recipe
from qbpass.runtime.drafting.adaptive import AdaptivePolicy
from qbpass.runtime.drafting.calibrate import calibrate
from qbpass.runtime.drafting.drafts import Drafts
from qbpass.runtime.endpoint import Endpoint, first_difference
from qbpass.runtime.engine import Request
from qbpass.runtime.trace import Trace

Progress = Callable[[str, int, int], None]

#: One run: an endpoint, its trace and the median of its seconds.
Run = tuple[Endpoint, Trace, float]


def qualify(
    bundle: Bundle,
    prompts: Sequence[Prompt],
    options: QualifyOptions,
    spec: SessionSpec,
    progress: Progress = lambda text, done, total: None,
) -> QualificationReport:
    """Run the arms of `options` over `prompts`.

    Raises PromptError for a prompt that does not fit, before anything runs; BundleError where the recipe is not this
    process's.
    """
    check_fit(prompts, bundle.manifest)
    recipe = check_recipe(bundle, spec)
    drafts = Drafts(options.draft, bundle, spec, fresh=options.fresh_draft, progress=progress)
    arms = build_arms(bundle, options, spec, lambda text: progress(text, 0, 1), drafts)
    requests = [
        Request(p.token_ids, options.max_new_tokens, frozenset(bundle.manifest.eos_token_ids), options.k)
        for p in prompts
    ]
    for arm in arms:
        progress(f"warming up {arm.name}", 0, 1)
        arm.engine.generate(Request(requests[0].prompt, 4, requests[0].stop_ids, options.k))
        if isinstance(arm.engine.policy, AdaptivePolicy):
            calibrate(arm.engine.policy.costs, arm.target)
    runs: list[dict[str, Run]] = []
    replays = {arm.name: ReplayCount() for arm in arms if arm.name != "R"}
    for index, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
        tell = partial(_tell, progress, prompt.id, index, len(prompts))
        runs.append(_run_prompt(arms, request, options, index, tell))
        if options.replay_rows:
            tell("forced replay")
            _replay_prompt(arms, prompt, runs[-1]["R"][0], options.replay_rows, replays)
    progress("done", len(prompts), len(prompts))
    widest = bundle.manifest.max_queries - 1
    return QualificationReport(
        recipe=recipe,
        draft=options.draft,
        draft_model=drafts.model,
        policy=options.policy,
        k=widest if options.k is None else min(options.k, widest),
        max_new_tokens=options.max_new_tokens,
        arms={arm.name: _arm_report(arm, prompts, runs, replays.get(arm.name, ReplayCount())) for arm in arms},
        prompts=tuple(_prompt_report(prompt, run) for prompt, run in zip(prompts, runs, strict=True)),
    )


def _tell(progress: Progress, prompt: str, done: int, total: int, what: str) -> None:
    progress(f"{prompt}: {what}", done, total)


def _run_prompt(
    arms: Sequence[Arm], request: Request, options: QualifyOptions, turn: int, tell: Callable[[str], None]
) -> dict[str, Run]:
    """Every arm once for each repeat, the order turned by one each time."""
    results: dict[str, list[tuple[Endpoint, Trace, float]]] = {arm.name: [] for arm in arms}
    for repeat in range(options.repeats):
        shift = (turn + repeat) % len(arms)
        for arm in [*arms[shift:], *arms[:shift]]:
            tell(arm.name)
            start = time.perf_counter()
            endpoint, trace = arm.engine.generate(request)
            results[arm.name].append((endpoint, trace, time.perf_counter() - start))
    reference = results["R"][0][0]
    return {name: _merge(entries, reference) for name, entries in results.items()}


def _merge(entries: list[Run], reference: Endpoint) -> Run:
    """The first run that is not the reference's, if any: a repeat that differs must not be hidden by the others."""
    endpoint, trace, _ = next((entry for entry in entries if entry[0] != reference), entries[0])
    return endpoint, trace, statistics.median(seconds for _, _, seconds in entries)


def _replay_prompt(
    arms: Sequence[Arm], prompt: Prompt, reference: Endpoint, rows: int, counts: dict[str, ReplayCount]
) -> None:
    tokens = reference.token_ids[:rows]
    serial = next(arm.target for arm in arms if arm.name == "R")
    wanted = serial_rows(serial, prompt.token_ids, tokens)
    for arm in arms:
        if arm.name in counts:
            replay(arm.target, prompt.id, prompt.token_ids, tokens, wanted, counts[arm.name])


def _arm_report(arm: Arm, prompts: Sequence[Prompt], runs: Sequence[dict[str, Run]], count: ReplayCount) -> ArmReport:
    gaps = [_gap(run["R"][0], run[arm.name][0]) for run in runs]
    equal = sum(gap is None for gap in gaps)
    seconds = sum(run[arm.name][2] for run in runs)
    traces = [run[arm.name][1] for run in runs]
    total = Trace()
    for trace in traces:
        total.add(trace)
    first = next(((p.id, gap) for p, gap in zip(prompts, gaps, strict=True) if gap is not None), None)
    return ArmReport(
        endpoints=len(runs),
        equal=equal,
        first_difference=None if first is None else FirstDifference(prompt=first[0], token=first[1]),
        logit_rows=count.rows,
        logit_rows_equal=count.equal,
        first_row_difference=None if count.first is None else FirstRowDifference(**vars(count.first)),
        rows_by_width_and_alignment={
            f"q={width} n%4={residue}": rows for (width, residue), rows in sorted(count.by_width_and_alignment.items())
        },
        seconds=seconds,
        **_speed(arm.name, prompts, runs, exact=equal == len(runs)),
        tokens_per_round=total.tokens_per_round,
        acceptance=total.acceptance,
        mean_k=total.proposed_per_round,
        undrafted_rounds=total.plain_share,
        repaired=arm.repaired,
    )


def _speed(arm: str, prompts: Sequence[Prompt], runs: Sequence[dict[str, Run]], *, exact: bool) -> dict[str, Any]:
    """The report's fields of ratios. An arm that is not the reference in every endpoint has none."""
    if not exact:
        return {"ratio_to_R": None, "geometric_mean": None, "worst_prompt": None, "geometric_mean_by_domain": {}}
    ratios = [run["R"][2] / run[arm][2] for run in runs]
    domains: dict[str, list[float]] = {}
    for prompt, ratio in zip(prompts, ratios, strict=True):
        domains.setdefault(prompt.domain, []).append(ratio)
    worst = min(range(len(runs)), key=ratios.__getitem__)
    return {
        "ratio_to_R": sum(run["R"][2] for run in runs) / sum(run[arm][2] for run in runs),
        "geometric_mean": statistics.geometric_mean(ratios),
        "worst_prompt": PromptRatio(prompt=prompts[worst].id, ratio_to_R=ratios[worst]),
        "geometric_mean_by_domain": {domain: statistics.geometric_mean(each) for domain, each in domains.items()},
    }


def _gap(reference: Endpoint, other: Endpoint) -> int | None:
    """The first differing token; the length where only the stop differs; None where the endpoints are equal."""
    if reference == other:
        return None
    gap = first_difference(reference.token_ids, other.token_ids)
    return reference.length if gap is None else gap


def _prompt_report(prompt: Prompt, run: dict[str, Run]) -> PromptReport:
    reference = run["R"][0]
    return PromptReport(
        id=prompt.id,
        domain=prompt.domain,
        prompt_tokens=len(prompt.token_ids),
        generated_tokens=reference.length,
        stop_reason=reference.stop_reason,
        first_difference={name: _gap(reference, entry[0]) for name, entry in run.items() if name != "R"},
        seconds={name: entry[2] for name, entry in run.items()},
    )
