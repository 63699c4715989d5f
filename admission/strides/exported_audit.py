"""Audits a site as the graph has it: what admission says of a site, checked by running the site's own nodes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from onnx import helper

from qbpass.admission.cached_as import joined_in
from qbpass.admission.calls.call import CALLS, Call
from qbpass.admission.dataflow import Flow
from qbpass.admission.factors import constant_factor
from qbpass.admission.report import Diagnostic
from qbpass.admission.site import AttentionSite, ElementStep
from qbpass.admission.strides.call_audit import CallAudit, Steps, Subject, audit_call
from qbpass.admission.strides.cut_graph import GraphCutter, SizeOf
from qbpass.admission.strides.decode_scores import MASK_CHOSEN
from qbpass.admission.strides.elements import UntracedError
from qbpass.admission.strides.exported import exported_subject, interface_sizes
from qbpass.admission.strides.findings import Place
from qbpass.admission.strides.kind import graph_digest
from qbpass.admission.strides.mask_rows import MaskRows
from qbpass.admission.strides.node_kinds import cast_label
from qbpass.admission.strides.operands import Through
from qbpass.models.dataflow import attribute

EXPORTED = "exported"


class ExportedGraph:
    """A decoder's graph, asked about its sites. Masks that sites share are run once."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.cutter = GraphCutter(flow.model, flow.nodes)
        self._masks: dict[str, MaskRows] = {}
        self._audits: dict[tuple[AttentionSite, Call], CallAudit] = {}
        self._steps: dict[AttentionSite, tuple[Call, Steps]] = {}

    def mask(self, site: AttentionSite) -> MaskRows | None:
        if site.mask is None:
            return None
        if site.mask not in self._masks:
            self._masks[site.mask] = MaskRows(self.flow.model, self.flow.interface, site.mask)
        return self._masks[site.mask]

    def mask_shape(self, site: AttentionSite, call: Call) -> Sequence[int] | None:
        """Raises UntracedError where the mask's shape is not known; None where there is no mask."""
        rows = self.mask(site)
        return None if rows is None or site.mask is None else rows.shape(call) or self.size_of(site, call)(site.mask)

    def kind(self, site: AttentionSite) -> tuple[Hashable, ...]:
        """Equal for sites whose audits are equal: the same nodes over operands of the same shapes, under one mask."""
        call = CALLS[0]
        try:
            subject = self._subject(site, call)
        except UntracedError:
            return (site.name,)
        updates = tuple((self._update_form(new), site.type_of(new or "")) for new in (site.new_key, site.new_value))
        types = (site.elem_type, site.value_type, site.key_axes, site.value_axes)
        sizes = (site.heads, site.kv_heads, site.head_dim, site.value_dim, types, site.scale)
        return (*sizes, site.mask, updates, graph_digest(subject.model, subject.leaves))

    def _subject(self, site: AttentionSite, call: Call) -> Subject:
        """Casts of the joined rows to the type they have are traced as what they are: names."""
        subject = exported_subject(self.cutter, site, call, self.mask_shape(site, call), self.size_of(site, call))
        rows = {name for joined in (site.k, site.v) for name in joined_in(joined, self.flow)}
        for node in subject.model.graph.node:
            if node.op_type == "Cast" and node.output[0] in rows:
                node.CopyFrom(helper.make_node("Identity", list(node.input), list(node.output)))
        return subject

    def _update_form(self, new: str | None) -> Hashable:
        """What makes the call's rows: a cache update may skip a transpose."""
        node = self.flow.producer(new or "")
        return None if node is None else (node.op_type, tuple(attribute(node, "perm", ())))

    def through(self, steps: Sequence[ElementStep]) -> tuple[Through, ...]:
        """What elements went through, as traces have it. Raises UntracedError where a factor is no constant."""
        found: list[Through] = []
        for step in steps:
            node = self.flow.node(step.node)
            if step.to:
                found.append((cast_label(node), None))
                continue
            number = self.flow.constant(step.factor)
            if number is None:
                raise UntracedError(f"multiplies by {step.factor!r}, which is no constant")
            found.append((str(node.op_type), number.reshape(-1)))
        return tuple(found)

    def size_of(self, site: AttentionSite, call: Call) -> SizeOf:
        """Shapes in the call: of the interface's inputs, of what admission has worked out, or of a traced call."""
        known = interface_sizes(self.flow.interface, call)
        for tensor, extents in site.sizes.items():
            sizes = [extent.at(call.queries, call.past) for extent in extents]
            if None not in sizes:
                known.setdefault(tensor, tuple(size or 0 for size in sizes))

        def size(tensor: str) -> Sequence[int]:
            if tensor in known:
                return known[tensor]
            shape = self.flow.trace(call).shape(tensor)
            sizes = [size for size in shape or () if size is not None]
            if shape is None or len(sizes) != len(shape):
                raise UntracedError(f"depends on the size of {tensor!r}, which is not known")
            return sizes

        return size

    def audit(self, site: AttentionSite, calls: Iterable[Call]) -> list[CallAudit]:
        """One audit a call: addresses, scale, and the rows of the mask. Each is made once."""
        chosen = list(calls)
        self._audits |= {(site, call): self._audit(site, call) for call in chosen if (site, call) not in self._audits}
        return [self._audits[site, call] for call in chosen]

    def _audit(self, site: AttentionSite, call: Call) -> CallAudit:
        place = Place(site, call, EXPORTED)
        try:
            subject = self._subject(site, call)
        except UntracedError as error:
            return CallAudit(place, (), (place.problem("UNTRACED", f"the exported graph {error}"),))
        audit = audit_call(place, subject, element_size(site))
        problems = [
            *audit.problems,
            *self._scale_problems(place, audit.steps),
            *self._changing_steps(place, audit.steps),
            *self._mask_problems(place, audit),
        ]
        return CallAudit(place, audit.operations, tuple(problems), audit.steps)

    def _changing_steps(self, place: Place, steps: Steps | None) -> list[Diagnostic]:
        """A row goes through the same operations, with the same numbers, in every call: alone as in a block."""
        if steps is None:
            return []
        call, first = self._steps.setdefault(place.site, (place.call, steps))
        return [
            place.problem("STEPS", f"{where}: {chains[0]}, and {first[where][0]} in a call of {call}", where=where)
            for where, chains in steps.items()
            if chains != first[where]
        ]

    def _scale_problems(self, place: Place, steps: Steps | None) -> list[Diagnostic]:
        """Whether the constant factors multiply to the site's scale, the one in front of Q included."""
        site = place.site
        if steps is None or site.scale is None:
            return []
        producer = self.flow.producer(site.q)
        before = constant_factor(producer, self.flow) if producer is not None else None
        found = _factor(steps) * (1.0 if before is None else before)
        if math.isclose(found, site.scale, rel_tol=1e-5):
            return []
        message = f"the factors on the scores multiply to {found:.6g}, the site's scale is {site.scale:.6g}"
        return [place.problem("SCALE", message, found=found, scale=site.scale)]

    def _mask_problems(self, place: Place, audit: CallAudit) -> list[Diagnostic]:
        rows = self.mask(place.site)
        if rows is not None:
            hidden_where = any(f"{MASK_CHOSEN} yes" in chain for chain in (audit.steps or {}).get("score", ()))
            return list(rows.problems(place, hidden_where=hidden_where))
        if place.call.queries == 1:
            return []
        return [place.problem("MASK_AHEAD", "there is no mask, so each row sees the keys of the rows behind it")]


def element_size(site: AttentionSite) -> int:
    """Bytes of one element of Q."""
    return int(np.dtype(helper.tensor_dtype_to_np_dtype(site.elem_type)).itemsize)


def _factor(steps: Steps) -> float:
    """The product of the factors that the trace met on the way to the softmax."""
    found = 1.0
    for where in ("query", "key", "score"):
        for step in ", ".join(steps[where][:1]).split(", "):
            name, _, rest = step.partition("(")
            number = rest.removeprefix("alpha=").removesuffix(")")
            if name in ("product", "Mul"):
                found *= float(number)
            elif name == "Div":
                found /= float(number)
    return found
