"""One call of one graph of a site: traced by the algebra and by the oracle, both compared with the definition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from qbpass.admission.report import Diagnostic
from qbpass.admission.strides.algebra import Operation
from qbpass.admission.strides.decode import decode
from qbpass.admission.strides.elements import Elements, Ids, UntracedError
from qbpass.admission.strides.findings import Place, compare_reads
from qbpass.admission.strides.operands import Memory
from qbpass.admission.strides.oracle import run_oracle
from qbpass.admission.strides.required import Reads
from qbpass.admission.strides.run_algebra import run_algebra
from qbpass.admission.strides.view import View
from qbpass.admission.strides.walk import Walk

Steps = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class Subject:
    """A graph of a site in one call: `model` computes the output (1, H, q, dv), and the caches named in `caches`.

    leaves: its inputs, as the site's operands. caches: output -> the operand whose rows it must hold, all in order.
    """

    model: onnx.ModelProto
    leaves: Mapping[str, Memory]
    output: str
    required: Reads
    caches: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class CallAudit:
    """steps: the operations on single elements, where the trace could be read."""

    place: Place
    operations: tuple[Operation, ...]
    problems: tuple[Diagnostic, ...]
    steps: Steps | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "graph": self.place.part,
            "queries": self.place.call.queries,
            "past": self.place.call.past,
            "operations": [operation.to_json() for operation in self.operations],
            "problems": [{"code": p.code, "message": p.message, "evidence": dict(p.evidence)} for p in self.problems],
        }


def audit_call(place: Place, subject: Subject, elem_size: int) -> CallAudit:
    """Every problem of one call. Changes nothing and raises nothing for a graph that can't be traced."""
    leaves = {name: subject.leaves[name] for name in (entry.name for entry in subject.model.graph.input)}
    try:
        elements, ids, values = run_oracle(subject.model, leaves, {})
        algebra = run_algebra(subject.model, leaves, values, elem_size)
    except UntracedError as error:
        return CallAudit(place, (), (place.problem("UNTRACED", f"the {place.part} graph {error}"),))
    algebra_ids = {name: held.ids() for name, held in algebra.held.items()}
    differing = _disagreements(place, ids, algebra_ids, same=elements.same_as(algebra.elements))
    problems = [*differing, *view_problems(place, algebra.operations)]
    steps: Steps | None = None
    traces = [("oracle", elements, ids), ("algebra", algebra.elements, algebra_ids)]
    # What is the same element for element is read back once.
    for witness, found, traced in traces if differing else [("both", elements, ids)]:
        try:
            reads = _decoded(place, subject, found, traced)
        except UntracedError as error:
            problems.append(place.problem("UNTRACED", f"the {place.part} graph {error}", found_by=witness))
            continue
        problems += compare_reads(place, reads, subject.required, witness)
        problems += _cache_problems(place, subject, found, traced, witness)
        problems += _uneven_steps(place, reads.steps, witness)
        steps = reads.steps
    return CallAudit(place, tuple(algebra.operations), tuple(problems), steps)


def _decoded(place: Place, subject: Subject, elements: Elements, traced: Mapping[str, Ids]) -> Reads:
    if subject.output not in traced:
        raise UntracedError("computes its output from no operand of the attention")
    return decode(elements, traced[subject.output], place.site, place.call)


def _disagreements(
    place: Place, oracle: Mapping[str, Ids], algebra: Mapping[str, Ids], *, same: bool
) -> list[Diagnostic]:
    """The first tensor whose elements are not the same in both traces: what follows it differs, too. same: whether the
    elements themselves were made alike.
    """
    for name, wanted in oracle.items():
        found = algebra.get(name)
        if found is None or found.shape != wanted.shape or not np.array_equal(found, wanted):
            shapes = [None if found is None else list(found.shape), list(wanted.shape)]
            message = f"{name!r} is not the same in the algebra and in the oracle"
            return [place.problem("ORACLE_DISAGREES", message, tensor=name, shapes=shapes)]
    if same:
        return []
    return [place.problem("ORACLE_DISAGREES", "a product or sum reads other elements in the algebra and in the oracle")]


def view_problems(place: Place, operations: Iterable[Operation]) -> list[Diagnostic]:
    """Operations whose views are not within their memory, on whole elements, and free of overlap."""
    problems = []
    for operation in operations:
        view = operation.view
        for code, wrong, words in (
            ("VIEW_SPAN", not view.within_allocation, "reaches out of its allocation"),
            ("VIEW_ALIGNMENT", not view.elements_aligned, "straddles elements"),
            ("VIEW_OVERLAP", _may_overlap(view), "overlaps itself"),
        ):
            if wrong:
                message = f"{operation.operator} to {operation.tensor!r} {words}"
                problems.append(place.problem(code, message, **operation.to_json()))
    return problems


def _may_overlap(view: View) -> bool:
    """Whether a view overlaps itself, or is too large for it to be shown that it does not."""
    try:
        return view.overlaps
    except ValueError:
        return True


def _cache_problems(
    place: Place, subject: Subject, elements: Elements, traced: Mapping[str, Ids], witness: str
) -> list[Diagnostic]:
    problems = []
    for tensor, root in subject.caches.items():
        try:
            if tensor not in traced:
                raise UntracedError(f"does not write {root}")
            numbers, chains = Walk(elements).operand(traced[tensor].reshape(-1), root)
        except UntracedError as error:
            problems.append(place.problem("UNTRACED", f"the {place.part} graph {error}", found_by=witness))
            continue
        wrong = np.flatnonzero(numbers != np.arange(numbers.size))
        if wrong.size:
            message = f"element {wrong[0]} of {tensor!r} is element {numbers[wrong[0]]} of the {root} rows"
            problems.append(place.problem("CACHE_ROWS", message, tensor=tensor, differing=int(wrong.size)))
        elif len(chains) > 1:
            message = f"new rows of {tensor!r} go through other operations than the ones that are cached"
            problems.append(place.problem("CACHE_ROWS", message, tensor=tensor, chains=list(chains)))
    return problems


def _uneven_steps(place: Place, steps: Steps, witness: str) -> list[Diagnostic]:
    """Every element of one place must go through the same operations."""
    for where, chains in steps.items():
        if len(chains) > 1:
            message = f"not every {where} goes through the same operations"
            return [place.problem("STEPS", message, where=where, chains=list(chains[:4]), found_by=witness)]
    return []
