"""What `qbpass probe` does: every probe asked of the graphs that a MODEL argument names, curves, placement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qbpass.commands.options import OptionError
from qbpass.models.cache import cache_folder
from qbpass.models.session import SessionSpec
from qbpass.screen import Steps

if TYPE_CHECKING:
    from qbpass.admission.probes.case import Case
    from qbpass.admission.probes.collect import LeftOut
    from qbpass.admission.probes.curve import Curve
    from qbpass.admission.probes.falsify import Bench
    from qbpass.admission.probes.probe import Probe
    from qbpass.admission.probes.report import ProbeReport
    from qbpass.models.decoder import Decoder
    from qbpass.rewrites.bundle import Bundle

BUILTIN = "builtin:operators"


@dataclass(frozen=True)
class ProbeOptions:
    """only: names of probes or operators; () means all. past: rows behind which calls are timed; None for no curve."""

    spec: SessionSpec
    only: tuple[str, ...] = ()
    past: int | None = 128
    queries: int = 4
    fresh: bool = False
    witnesses: Path | None = None


def probe_model(model: str, options: ProbeOptions, steps: Steps) -> ProbeReport:
    """The report of an .onnx file, an export's folder, a bundle, or the builtin operators.

    Raises OptionError for names that `only` does not know, else what loading, freezing and running raise.
    """
    if model == BUILTIN:
        return _probe_builtin(options, steps)
    return _probe_decoder(Path(model), options, steps)


def _probe_builtin(options: ProbeOptions, steps: Steps) -> ProbeReport:
    from qbpass.admission.probes.catalogue import catalogue

    bench = _bench(options)
    cases = _answered(catalogue(), options, bench, steps)
    return _report(BUILTIN, dict(bench.machine), options, cases)


def _probe_decoder(path: Path, options: ProbeOptions, steps: Steps) -> ProbeReport:
    from qbpass.admission.placement import observe_placement
    from qbpass.admission.probes.report import left_out_kinds
    from qbpass.models.recipe import recipe_of

    bench = _bench(options)
    with _opened(path, options.spec, steps) as (frozen, bundle):
        _check_past(options, frozen)
        steps.text("reading the recipe")
        recipe = recipe_of(frozen, options.spec).model_dump(mode="json")
        steps.text("observing placement")
        placement = observe_placement(frozen, options.spec).to_json()
        # Before the probes: what can't be called is then said at once.
        curves = [] if options.past is None else _curves(frozen, bundle, recipe, options.past, bench, steps)
        steps.text("looking at the shapes of every tensor")
        found = list(_cases(frozen, bundle, options.spec))
        cases = _answered([case for _, made, _ in found for case in made], options, bench, steps)
        left = [kind for name, _, kinds in found for kind in left_out_kinds(name, kinds)]
    return _report(str(path), recipe, options, cases, left, placement, curves)


@contextmanager
def _opened(path: Path, spec: SessionSpec, steps: Steps) -> Iterator[tuple[Decoder, Bundle | None]]:
    from qbpass.models_at import frozen_decoder
    from qbpass.rewrites.bundle import check_recipe, open_bundle
    from qbpass.rewrites.manifest import MANIFEST_FILE

    bundle = open_bundle(path) if (path / MANIFEST_FILE).is_file() else None
    if bundle is not None:
        check_recipe(bundle, spec)
    with frozen_decoder(path, spec, steps.text) as frozen:
        yield frozen, bundle


def _cases(
    frozen: Decoder, bundle: Bundle | None, spec: SessionSpec
) -> Iterator[tuple[str, list[Case], list[LeftOut]]]:
    """Of the frozen graph and, for a bundle, of the rewritten one where its layout is active."""
    from qbpass.admission.dataflow import Flow
    from qbpass.admission.probes.collect import collect
    from qbpass.admission.probes.core import core_cases
    from qbpass.admission.probes.feeds import decoder_feeds
    from qbpass.admission.probes.observe import RunnableGraph, observe
    from qbpass.evidence.active_graph import active_graph

    graph = RunnableGraph("frozen", frozen.model, frozen.folder, lambda call: decoder_feeds(frozen, call))
    seen = observe(graph, spec)
    cases, left = collect(graph, seen)
    cores, without_case = core_cases(Flow.of(frozen), graph, seen)
    yield graph.name, [*cases, *cores], [*left, *without_case]
    if bundle is not None:
        active = active_graph(bundle)
        yield active.name, *collect(active, observe(active, spec))


def _bench(options: ProbeOptions) -> Bench:
    from qbpass.admission.probes.falsify import Bench
    from qbpass.admission.probes.probe import Settings
    from qbpass.admission.probes.store import Store, as_plain
    from qbpass.models.recipe import machine_facts

    folder = cache_folder() / "probes"
    witnesses = options.witnesses or folder / "witnesses"
    machine = as_plain(machine_facts(options.spec))
    return Bench(options.spec, machine, Store(folder, options.fresh), witnesses, Settings(options.queries))


def _answered(cases: Sequence[Case], options: ProbeOptions, bench: Bench, steps: Steps) -> list[Any]:
    from qbpass.admission.probes.falsify import ask_all
    from qbpass.admission.probes.report import probed_case

    chosen, probes = _chosen(cases, options.only)
    answers = ask_all(chosen, probes, bench, steps.count)
    return [probed_case(answer, str(bench.machine["provider"]), options.spec.threads) for answer in answers]


def _chosen(cases: Sequence[Case], only: tuple[str, ...]) -> tuple[list[Case], list[Probe]]:
    from qbpass.admission.probes.registry import PROBES

    operators = {case.operator for case in cases}
    unknown = [name for name in only if name not in operators | {probe.name for probe in PROBES}]
    if unknown:
        raise OptionError(
            f"--only {unknown[0]} is neither an operator that is probed here nor a probe: choose one of "
            f"{', '.join(probe.name for probe in PROBES)}"
        )
    kinds = [probe for probe in PROBES if probe.name in only] or list(PROBES)
    return [case for case in cases if case.operator in only] or list(cases), kinds


def _check_past(options: ProbeOptions, frozen: Decoder) -> None:
    from qbpass.admission.probes.curve import WIDEST

    context = frozen.context_length
    if options.past is not None and context is not None and options.past + WIDEST > context:
        raise OptionError(f"--past {options.past} leaves no room for {WIDEST} rows in the model's context of {context}")


def _curves(
    frozen: Decoder, bundle: Bundle | None, recipe: dict[str, Any], past: int, bench: Bench, steps: Steps
) -> list[Curve]:
    """What calls of the frozen graph cost, and what the bundle's own do; kept by recipe like every other answer."""
    from qbpass.admission.probes.curve import Curve, decoder_calls, measure_curve
    from qbpass.admission.probes.store import key_of
    from qbpass.evidence.bundle_curve import bundle_calls

    curves = []
    for name in ("frozen", *(["active"] if bundle is not None else [])):
        files = {} if name == "frozen" or bundle is None else bundle.manifest.files
        key = key_of("curve", recipe, name, dict(files), past)
        curve = bench.store.load(key, Curve)
        if curve is None:
            steps.text(f"timing calls of the {name} graph behind {past} rows")
            if name == "frozen" or bundle is None:
                curve = measure_curve(name, past, decoder_calls(frozen, bench.spec, past), steps.count)
            else:
                calls, before = bundle_calls(bundle, bench.spec, past)
                curve = measure_curve(name, past, calls, steps.count, before)
            bench.store.save(key, curve)
        curves.append(curve)
    return curves


def _report(
    model: str,
    recipe: dict[str, Any],
    options: ProbeOptions,
    cases: list[Any],
    left: Sequence[Any] = (),
    placement: dict[str, Any] | None = None,
    curves: Sequence[Curve] = (),
) -> ProbeReport:
    from qbpass.admission.probes.report import ProbeReport

    return ProbeReport(
        model=model,
        recipe=recipe,
        queries=options.queries,
        cases=tuple(cases),
        left_out=tuple(left),
        placement=placement,
        curves=tuple(curves),
    )
