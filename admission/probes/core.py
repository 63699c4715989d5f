"""The core of a decomposed attention: from queries and present K and V to the product of probabilities and values.

Beside the form that the graph has, a core is built with its queries as batch entries: with K and V as the graph repeats
them, and with K and V shared by broadcasting over queries and groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from qbpass.admission.dataflow import Flow
from qbpass.admission.discover import discover_in
from qbpass.admission.probes.case import Case, Tensor, Weight
from qbpass.admission.probes.collect import Collector, LeftOut, Unfit, add_case
from qbpass.admission.probes.kinds import MOVERS
from qbpass.admission.probes.observe import RunnableGraph, Seen
from qbpass.admission.site import AttentionSite
from qbpass.models.dataflow import attribute

NAME = "attention core"
QUERY_TO_BATCH = "query to batch"
SHARED = "query to batch, K and V shared"
_TURN = (2, 1, 0, 3)  # (1, H, q, d) <-> (q, H, 1, d)

Nodes = list[onnx.NodeProto]


def core_cases(flow: Flow, graph: RunnableGraph, seen: Mapping[str, Seen]) -> tuple[list[Case], list[LeftOut]]:
    """A case for each kind of attention core in the graph, and the cores that make none, with the reason."""
    collector = Collector(graph, seen)
    cases: dict[str, Case] = {}
    left: Counter[str] = Counter()
    for report in discover_in(flow):
        if report.site is None:
            continue
        try:
            case = collector.case(_nodes(report.site, flow), NAME, "")
        except Unfit as reason:
            left[str(reason)] += 1
            continue
        add_case(cases, with_forms(case, report.site))
    return list(cases.values()), [LeftOut(NAME, "", reason, count) for reason, count in left.items()]


def _nodes(site: AttentionSite, flow: Flow) -> Nodes:
    return sorted((flow.node(name) for name in site.nodes.all()), key=lambda node: flow.position(node.output[0]))


def with_forms(case: Case, site: AttentionSite) -> Case:
    """Adds the forms with queries as batch entries, where the case's shapes are those they are written for.

    (1, .., q, ..) for whatever has rows, (1, Hkv, n, d) for K and V.
    """
    forms = dict(case.forms)
    builder = _Forms(case, site)
    if builder.fits:
        forms[QUERY_TO_BATCH] = tuple(builder.repeated())
        if builder.can_share:
            forms[SHARED] = tuple(builder.shared())
    return replace(case, forms=forms, weights=(*case.weights, *builder.constants))


class _Forms:
    """Builds the other forms of one core. Its nodes come in the graph's order, the product with the values last."""

    def __init__(self, case: Case, site: AttentionSite):
        self.case, self.site, self.result = case, site, case.results[0]
        self.constants: list[Weight] = []
        self.by_row = [operand for operand in case.operands if operand.row_axis is not None]
        with_rows: list[Tensor] = [*self.by_row, self.result]
        self.fits = bool(self.by_row) and all(_turns(entry) for entry in with_rows)
        keyed = [o for o in case.operands if o.row_axis is None and o.key_axis == 2 and len(o.dims) == 4]
        self.keyed = {operand.name: operand for operand in keyed}
        self.av = case.nodes[-1]
        self.qk = next(node for node in case.nodes if self._is_product(node))
        self.sides = [self._behind(node.input[1]) for node in (self.qk, self.av)]

    def _is_product(self, node: onnx.NodeProto) -> bool:
        return node.op_type in ("MatMul", "FusedMatMul")

    def _behind(self, tensor: str) -> list[onnx.NodeProto] | None:
        """Nodes that only move K (or V) on its way to its product, or None where they compute."""
        makers = {node.output[0]: node for node in self.case.nodes}
        path: Nodes = []
        pending = [tensor]
        while pending:
            node = makers.get(pending.pop())
            if node is not None and node not in path:
                path.append(node)
                pending.extend(node.input)
        return path if all(node.op_type in MOVERS for node in path) else None

    @property
    def can_share(self) -> bool:
        return len(self.keyed) == 2 and None not in self.sides

    def repeated(self) -> Nodes:
        """K and V as the graph has them; only what has rows is turned."""
        moved = {operand.name: f"{operand.name}.batch" for operand in self.by_row}
        before = [helper.make_node("Transpose", [name], [new], perm=_TURN) for name, new in moved.items()]
        inner = [_reading(node, moved | {self.result.name: f"{self.result.name}.batch"}) for node in self.case.nodes]
        return [
            *before,
            *inner,
            helper.make_node("Transpose", [f"{self.result.name}.batch"], [self.result.name], perm=_TURN),
        ]

    def shared(self) -> Nodes:
        """Q (q, Hkv, G, 1, d), K (1, Hkv, 1, d, n) or its transpose, V (1, Hkv, 1, n, d); scores (q, Hkv, G, 1, n)."""
        site, nodes = self.site, []
        names: dict[str, str] = {}
        axis = self._ints("axis", [2])
        for operand in self.by_row:
            heads = operand.dims[1].fixed
            split = (site.kv_heads, site.group) if heads == site.heads else (heads, 1)
            shape = self._ints(f"{operand.name}.shape", [0, *split, 1, -1])
            turned, names[operand.name] = f"{operand.name}.batch", f"{operand.name}.rows"
            nodes.append(helper.make_node("Transpose", [operand.name], [turned], perm=_TURN))
            nodes.append(helper.make_node("Reshape", [turned, shape], [names[operand.name]]))
        for product, path in zip((self.qk, self.av), self.sides, strict=True):
            source = self._source(product.input[1], path or [])
            names[product.input[1]] = f"{source}.shared"
            if product is self.qk and not attribute(product, "transB", 0):
                nodes.append(helper.make_node("Transpose", [source], [f"{source}.turned"], perm=(0, 1, 3, 2)))
                source = f"{source}.turned"
            nodes.append(helper.make_node("Unsqueeze", [source, axis], [names[product.input[1]]]))
        moving = [node for path in self.sides for node in path or []]
        rows = f"{self.result.name}.rows"
        nodes += [_reading(n, names | {self.result.name: rows}) for n in self.case.nodes if n not in moving]
        shape = self._ints("result.shape", [0, site.heads, 1, -1])
        nodes.append(helper.make_node("Reshape", [rows, shape], [f"{rows}.batch"]))
        nodes.append(helper.make_node("Transpose", [f"{rows}.batch"], [self.result.name], perm=_TURN))
        return nodes

    def _source(self, tensor: str, path: Nodes) -> str:
        """The operand K or V that the product's side is moved from."""
        reads = {tensor, *(name for node in path for name in node.input)}
        return next(name for name in self.keyed if name in reads)

    def _ints(self, name: str, values: list[int]) -> str:
        full = f"core.{name}"
        self.constants.append(Weight(full, onnx.TensorProto.INT64, (len(values),), value=np.array(values, np.int64)))
        return full


def _turns(entry: Tensor) -> bool:
    dims = entry.dims
    return len(dims) == 4 and dims[2].is_rows and dims[2].rows == 1 and dims[0].is_fixed and dims[0].fixed == 1


def _reading(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(name, name) for name in node.input]
    copy.output[:] = [names.get(name, name) for name in node.output]
    return copy
