"""The kinds of operators outside attention whose rows might depend on each other: what is worth a trial."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.probes.kinds import EXACT, MOVERS, domain_of
from qbpass.admission.row_units.rows import Unsplittable, row_axis
from qbpass.admission.row_units.unit import RowUnit, row_unit
from qbpass.models.dataflow import FLOATS, FUSED_ATTENTION
from qbpass.rewrites.row_repair.label import label_of


@dataclass(frozen=True)
class RowKind:
    """Units that run the same kernels on the same shapes, in the graph's order. reason: why they can't be split; then
    `nodes` are the operators themselves.
    """

    label: str
    nodes: tuple[str, ...]
    units: tuple[RowUnit, ...] = ()
    reason: str | None = None


def row_kinds(flow: Flow, blocked: frozenset[str]) -> list[RowKind]:
    """Every kind of computing node that reads rows of the call in a floating-point type. blocked: attention's nodes.

    No node is in two units.
    """
    units: dict[str, list[RowUnit]] = {}
    refused: dict[tuple[str, str], list[str]] = {}
    claimed = set(blocked)
    for node in _computing(flow, blocked):
        if node_name(node) in claimed:
            continue
        try:
            unit = row_unit(flow, node, claimed)
        except Unsplittable as problem:
            refused.setdefault((node.op_type, _shapeless(str(problem))), []).append(node_name(node))
            continue
        claimed.update(unit.nodes)
        units.setdefault(_kind(flow, unit), []).append(unit)
    kinds = []
    taken: set[str] = set()
    for alike in units.values():
        label = _unique(label_of(flow, alike[0]), taken)
        kinds.append(RowKind(label, tuple(unit.seed for unit in alike), tuple(alike)))
    for (operator, reason), names in refused.items():
        kinds.append(RowKind(_unique(operator, taken), tuple(names), reason=reason))
    return kinds


def _computing(flow: Flow, blocked: frozenset[str]) -> Iterator[onnx.NodeProto]:
    for node in flow.nodes:
        known = domain_of(node) in ("", "com.microsoft")
        if (known and node.op_type in MOVERS | EXACT | FUSED_ATTENTION) or node_name(node) in blocked:
            continue
        if any(tensor in flow.activations and _float_rows(flow, tensor) for tensor in node.input if tensor):
            yield node


def _float_rows(flow: Flow, tensor: str) -> bool:
    if flow.elem_type(tensor) not in FLOATS:
        return False
    try:
        return row_axis(flow, tensor) is not None
    except Unsplittable:
        return True  # named as what can't be split


def _kind(flow: Flow, unit: RowUnit) -> str:
    """What makes two units one kind: operators, attributes, types and shapes."""
    state = hashlib.sha256()
    nodes = [flow.node(name) for name in unit.nodes]
    names: dict[str, str] = {}
    for node in nodes:
        for tensor in (*node.input, *node.output):
            if tensor:
                names.setdefault(tensor, f"t{len(names)}")
        short = helper.make_node(
            node.op_type,
            [names.get(tensor, "") for tensor in node.input],
            [names.get(tensor, "") for tensor in node.output],
            domain=domain_of(node),
        )
        short.attribute.extend(sorted(node.attribute, key=lambda attribute: str(attribute.name)))
        state.update(short.SerializeToString(deterministic=True))
    for tensor in (*(name for name, _ in unit.rows), *unit.shared):
        state.update(f"{names[tensor]} {flow.elem_type(tensor)} {flow.shape(tensor)}".encode())
    return state.hexdigest()


def _shapeless(reason: str) -> str:
    """A reason without the tensor it names, so that many layers share it."""
    return reason.split("'")[0] + "a tensor" + reason.rsplit("'", 1)[-1] if "'" in reason else reason


def _unique(label: str, taken: set[str]) -> str:
    numbered = label
    for number in range(2, len(taken) + 3):
        if numbered not in taken:
            break
        numbered = f"{label} ({number})"
    taken.add(numbered)
    return numbered


def types_are_known(flow: Flow, unit: RowUnit) -> bool:
    """Whether every operand and result of a unit has a type that numpy can hold."""
    tensors = [name for name, _ in (*unit.rows, *unit.results)]
    return all(flow.elem_type(name) not in (0, TensorProto.BFLOAT16, TensorProto.STRING) for name in tensors)
