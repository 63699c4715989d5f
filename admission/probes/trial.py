"""Two ways to compute the same rows, and how they are run: bytes are compared, nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from qbpass.admission.probes.case import CASE, Case
from qbpass.admission.probes.fills import Array, aligned
from qbpass.models.errors import QbpassError
from qbpass.models.session import SessionSpec, one_line, open_session


@dataclass(frozen=True)
class Carried:
    """Stands for an input that is an output of the call before."""

    output: str


Feeds = Mapping[str, Array | Carried]


@dataclass(frozen=True, eq=False)
class Run:
    """Calls of one form, one behind the other; the last one's outputs count."""

    calls: tuple[Feeds, ...]
    form: str = CASE


@dataclass(frozen=True)
class Cut:
    """The part [start, stop) of an axis."""

    axis: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class View:
    """What of a run's outputs is compared: output -> its parts, in order of the outputs."""

    run: Run
    cuts: Mapping[str, tuple[Cut, ...]]


@dataclass(frozen=True, eq=False)
class Trial:
    """`alone` is the row as serial decoding computes it, `together` the same row in another geometry.

    facts: whole numbers that say which geometry.
    """

    alone: View
    together: View
    facts: Mapping[str, int]


class CaseRefused(QbpassError):
    """ONNX Runtime does not run a case: then nothing is said of it. Caught where cases are probed."""


class Runner:
    """Runs the forms of one case on one provider; a run's outputs are kept as long as the run is."""

    def __init__(self, case: Case, spec: SessionSpec):
        self.case, self.spec = case, spec
        self._sessions: dict[str, Any] = {}
        self._refusals: dict[str, CaseRefused] = {}
        self._outputs: WeakKeyDictionary[Run, dict[str, Array]] = WeakKeyDictionary()

    def session(self, form: str) -> Any:
        """Raises CaseRefused where the form can't be loaded."""
        if form in self._refusals:
            raise self._refusals[form]
        if form not in self._sessions:
            model = self.case.model(form).SerializeToString()
            try:
                self._sessions[form] = open_session(model, self.spec, entries=RECORDING)
            except QbpassError as error:
                self._refusals[form] = CaseRefused(str(error))
                raise self._refusals[form] from error
        return self._sessions[form]

    def outputs(self, run: Run) -> dict[str, Array]:
        if run not in self._outputs:
            self._outputs[run] = run_calls(self.session(run.form), run.calls)
        return self._outputs[run]

    def view(self, view: View) -> dict[str, Array]:
        return cut_all(self.outputs(view.run), view.cuts)

    def providers(self) -> dict[str, list[str]]:
        """Provider -> operators it was assigned in this case's own session, as ONNX Runtime recorded it."""
        return assigned(self.session(CASE))


#: The session entry that makes ONNX Runtime say which provider each node was assigned to.
RECORDING = {"session.record_ep_graph_assignment_info": "1"}


def assigned(session: Any) -> dict[str, list[str]]:
    """Provider -> operators in the order of the graph; empty where this ONNX Runtime does not say."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return {}
    found: dict[str, list[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        found.setdefault(part.ep_name, []).extend(node.op_type for node in part.get_nodes())
    return found


def run_calls(session: Any, calls: Iterable[Feeds]) -> dict[str, Array]:
    """Outputs of the last call. Raises CaseRefused where a call fails."""
    names = [entry.name for entry in session.get_outputs()]
    wanted = {entry.name for entry in session.get_inputs()}
    made: dict[str, Array] = {}
    for feeds in calls:
        read = {name: value for name, value in feeds.items() if name in wanted}
        values = {name: made[v.output] if isinstance(v, Carried) else v for name, v in read.items()}
        try:
            outputs = session.run(None, {name: aligned(value) for name, value in values.items()})
        except Exception as error:  # ONNX Runtime raises a family of private types
            raise CaseRefused(one_line(error)) from error
        made = dict(zip(names, outputs, strict=True))
    return made


def cut_all(outputs: Mapping[str, Array], cuts: Mapping[str, tuple[Cut, ...]]) -> dict[str, Array]:
    """Contiguous parts of outputs. Raises CaseRefused where a part is not there."""
    return {name: _cut(outputs[name], parts) for name, parts in cuts.items()}


def _cut(array: Array, parts: tuple[Cut, ...]) -> Array:
    index: list[slice] = [slice(None)] * array.ndim
    for part in parts:
        if part.axis >= array.ndim or part.stop > array.shape[part.axis]:
            raise CaseRefused("an output has another shape than the graph's own")
        index[part.axis] = slice(part.start, part.stop)
    return np.asarray(array[tuple(index)], order="C")


def same(first: Mapping[str, Array], second: Mapping[str, Array]) -> bool:
    """Whether every part holds the same bytes."""
    return all(first[name].tobytes() == second[name].tobytes() for name in first)


def each(trials: Iterator[Trial], runner: Runner) -> Iterator[tuple[Trial, bool | str]]:
    """Runs trials one by one: each with whether its rows differ, or why ONNX Runtime did not run it."""
    for trial in trials:
        try:
            yield trial, not same(runner.view(trial.alone), runner.view(trial.together))
        except CaseRefused as reason:
            yield trial, str(reason)
