"""Recurrent, convolution and state-space states: what each call takes and gives anew, paired by dataflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from qbpass.models.cache_updates import LAYOUT, same_form
from qbpass.models.dataflow import SHAPE_OPS, Dataflow
from qbpass.models.interface import StatePair

# Nodes between a state and its successor; a whole gated delta rule, unrolled, has fewer.
_FARTHEST = 512


def find_states(flow: Dataflow, inputs: Sequence[str], outputs: Iterable[str]) -> tuple[StatePair, ...]:
    """Pairs among float inputs and outputs of no other part, in the order of the inputs.

    Every earlier state reaches every later output through the hidden stream, so each input is paired with the output
    that it reaches in the fewest nodes, the closest pair first. A pair has the same type, rank and fixed dimensions.
    """
    outputs = list(outputs)
    numbers = {name: number for number, name in enumerate(inputs)}
    ways = [
        (distance, abs(number - place), number, place)
        for place, present in enumerate(outputs)
        for number, distance in _distances(flow, present, numbers)
    ]
    paired: dict[int, int] = {}
    taken: set[int] = set()
    for _, _, number, place in sorted(ways):
        if number not in paired and place not in taken:
            paired[number] = place
            taken.add(place)
    return tuple(StatePair(inputs[n], outputs[p], _rank(flow, inputs[n])) for n, p in sorted(paired.items()))


def _distances(flow: Dataflow, present: str, numbers: Mapping[str, int]) -> list[tuple[int, int]]:
    """(number of the input, nodes between) for every fitting input that `present` is computed from."""
    found: dict[int, int] = {}
    for distance, node in enumerate(flow.backward(present, lambda n: n.op_type not in SHAPE_OPS)):
        if distance > _FARTHEST:
            break
        if node.op_type in LAYOUT and distance == 0 and node.input[0] in numbers:
            return []  # handed through: no state
        for name in node.input if node.op_type not in SHAPE_OPS else ():
            if name in numbers and same_form(flow, name, present):
                found.setdefault(numbers[name], distance)
    return list(found.items())


def _rank(flow: Dataflow, name: str) -> int | None:
    shape = flow.shape(name)
    return None if shape is None else len(shape)
