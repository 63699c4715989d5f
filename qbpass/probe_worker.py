"""The process that runs kernels for `qbpass probe`: one that crashes takes this process down and not the command.

Reads a question as JSON from stdin; answers on stdout, one JSON object a line, as soon as there is something to say.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from qbpass.commands.options import OptionError
from qbpass.models.errors import QbpassError
from qbpass.probe_options import BUILTIN, ProbeOptions

if TYPE_CHECKING:
    from qbpass.admission.probes.case import Case
    from qbpass.admission.probes.collect import LeftOut
    from qbpass.admission.probes.probe import Probe
    from qbpass.models.decoder import Decoder
    from qbpass.rewrites.bundle import Bundle


def work() -> None:
    """The child's whole life."""
    from qbpass.models.apart import own_stdout

    with own_stdout() as stream:
        question = json.load(sys.stdin)
        try:
            if "replay" in question:
                _replay(Path(question["replay"]), stream)
            else:
                _Worker(question, stream).run()
        except QbpassError as error:
            kind = type(error)
            _send(stream, error={"module": kind.__module__, "kind": kind.__name__, "message": str(error)})
        stream.flush()
    os._exit(0)  # nothing is left to do, and a session's end may take seconds


def _send(stream: IO[str], **message: Any) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def _replay(folder: Path, stream: IO[str]) -> None:
    from qbpass.admission.probes.replay import replay

    found = replay(folder)
    facts = {"reproduced": found.reproduced, "bytes_as_recorded": found.bytes_as_recorded, "unlike": found.unlike}
    _send(stream, replayed={**facts, "witness": found.witness.model_dump_json()})


class _Worker:
    """question: options, the model's name, the frozen graph's file, folders of weights that lie elsewhere, the bundle's
    folder, keys made, whether this is a second start (then only cases are wanted).
    """

    def __init__(self, question: dict[str, Any], stream: IO[str]):
        self.question, self.stream = question, stream
        self.options = ProbeOptions.from_json(question["options"])
        self.bench = self.options.bench(frozenset(question["made"]))

    def run(self) -> None:
        if self.question["model"] == BUILTIN:
            from qbpass.admission.probes.catalogue import catalogue

            self._ask(catalogue())
            return
        frozen, bundle = self._opened()
        if not self.question["again"]:
            self._observe(frozen, bundle)
        self._say("looking at the shapes of every tensor")
        found = list(self._cases(frozen, bundle))
        self._send(left=[{"graph": name, **vars(kind)} for name, _, kinds in found for kind in kinds])
        self._ask([case for _, made, _ in found for case in made])

    def _opened(self) -> tuple[Decoder, Bundle | None]:
        from qbpass.models.loading import load_graph
        from qbpass.rewrites.bundle import open_bundle

        folder = self.question["bundle"]
        elsewhere = {location: Path(place) for location, place in self.question["elsewhere"].items()}
        frozen = load_graph(Path(self.question["frozen"]), elsewhere=elsewhere)
        return frozen, None if folder is None else open_bundle(Path(folder))

    def _observe(self, frozen: Decoder, bundle: Bundle | None) -> None:
        """Placement and curves come before the probes: what can't be called is then said at once."""
        from qbpass.admission.placement import observe_placement

        self._say("observing placement")
        self._send(placement=observe_placement(frozen, self.options.spec).to_json())
        if self.options.past is not None:
            self._time(frozen, bundle, self.options.past)

    def _time(self, frozen: Decoder, bundle: Bundle | None, past: int) -> None:
        """What calls of the frozen graph cost, and what the bundle's own do; kept by recipe like every other answer."""
        from qbpass.admission.probes.curve import Curve, decoder_calls, measure_curve
        from qbpass.admission.probes.store import key_of
        from qbpass.evidence.bundle_curve import bundle_calls

        for name in ("frozen", *(["active"] if bundle is not None else [])):
            files = {} if name == "frozen" or bundle is None else bundle.manifest.files
            key = key_of("curve", self.question["recipe"], name, dict(files), past)
            curve = self.bench.store.load(key, Curve)
            if curve is None:
                self._say(f"timing calls of the {name} graph behind {past} rows")
                if name == "frozen" or bundle is None:
                    curve = measure_curve(name, past, decoder_calls(frozen, self.bench.spec, past), self._progress)
                else:
                    calls, before = bundle_calls(bundle, self.bench.spec, past)
                    curve = measure_curve(name, past, calls, self._progress, before)
                self.bench.store.save(key, curve)
            self._send(curve=curve.model_dump(mode="json"))

    def _cases(self, frozen: Decoder, bundle: Bundle | None) -> Iterator[tuple[str, list[Case], list[LeftOut]]]:
        """Of the frozen graph and, for a bundle, of the rewritten one where its layout is active."""
        from qbpass.admission.dataflow import Flow
        from qbpass.admission.probes.collect import collect
        from qbpass.admission.probes.core import core_cases
        from qbpass.admission.probes.feeds import decoder_feeds
        from qbpass.admission.probes.observe import RunnableGraph, observe
        from qbpass.evidence.active_graph import active_graph

        graph = RunnableGraph("frozen", frozen.model, frozen.weights, lambda call: decoder_feeds(frozen, call))
        seen = observe(graph, self.options.spec)
        cases, left = collect(graph, seen)
        cores, without_case = core_cases(Flow.of(frozen), graph, seen)
        yield graph.name, [*cases, *cores], [*left, *without_case]
        if bundle is not None and bundle.manifest.layout != "gs":  # whose rows are calls of the frozen graph's nodes
            active = active_graph(bundle)
            yield active.name, *collect(active, observe(active, self.options.spec))

    def _ask(self, cases: Sequence[Case]) -> None:
        from qbpass.admission.probes.falsify import ask_all, key_for
        from qbpass.admission.probes.report import probed_case

        chosen, probes = _chosen(cases, self.options.only)
        asking = ask_all(chosen, probes, self.bench, self._progress, lambda key: self._send(asking=key))
        for answer in asking:
            key = key_for(answer.case, answer.probe, self.bench)
            shown = probed_case(answer, str(self.bench.machine["provider"]), self.options.spec.threads)
            self._send(key=key, case=shown.model_dump(mode="json"))

    def _say(self, text: str) -> None:
        self._send(progress=[text, None, None])

    def _progress(self, text: str, done: int, total: int) -> None:
        self._send(progress=[text, done, total])

    def _send(self, **message: Any) -> None:
        _send(self.stream, **message)


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
