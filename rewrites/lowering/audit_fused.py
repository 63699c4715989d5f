"""What a fused node that a rewrite keeps reads.

Nobody sees into the node. What can be shown is that it is the exported operator, attribute by attribute, on the
exported operands, and that its keys and values are the cache's: it is spelled out where it stands, and followed like
any other.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto

from qbpass.admission.lowering.core import Core, write_core
from qbpass.admission.lowering.spelled import in_heads
from qbpass.admission.lowering.writer import Writer
from qbpass.admission.original import FusedOriginal
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides.cut_graph import GraphCutter
from qbpass.admission.strides.elements import UntracedError

#: In the names of what a fused node is spelled out into: no node of the graph that runs.
SPELLED = "/fused/spelled"

#: Operands that a rewrite makes anew out of the cache; every other one must be the exported tensor itself.
_FROM_CACHE = frozenset({"past_key", "past_value"})
_JOINED_BEFORE = frozenset({"k", "v"})


def with_fused_spelled_out(cutter: GraphCutter, site: AttentionSite) -> GraphCutter:
    """The cutter's graph with the site's fused nodes as primitives over their own operands; others stay.

    Raises UntracedError where one is not the exported node.
    """
    if site.fused is None:
        return cutter
    scope, w = f"qbpass/{site.name}/", Writer(f"qbpass/{site.name}/spelled/")
    for node in cutter.nodes:
        if node.name.startswith(scope) and (node.domain, node.op_type) == _operator(site.fused):
            _spell(w, node, site, site.fused)
        else:
            w.nodes.append(node)
    return cutter.with_nodes(w.nodes, w.constants.values())


def _operator(original: FusedOriginal) -> tuple[str, str]:
    return original.node.domain, original.node.op_type


def _spell(w: Writer, node: onnx.NodeProto, site: AttentionSite, original: FusedOriginal) -> None:
    """Reads the site's own queries and mask, which are computed from operands that are checked to be the exported."""
    if not original.same_as(node):
        raise UntracedError(f"holds a {node.op_type} with other attributes than the exported one")
    operands = _operands(node, original)
    core = _core(site, original)
    at = node.name.removesuffix("/fused") + SPELLED
    if original.appends:
        key = w.node("Concat", [operands["past_key"], site.new_key or ""], f"{at}/keys", axis=2)
        value = w.node("Concat", [operands["past_value"], site.new_value or ""], f"{at}/values", axis=2)
    else:
        flat = Core(core.heads, core.kv_heads, core.head_dim, core.value_dim, core.scale, original.flat_kv)
        key, value = (in_heads(w, at, flat, part, operands[part]) for part in ("k", "v"))
    write_core(w, at, core, site.q, key, value, site.mask, str(node.output[0]))


def _operands(node: onnx.NodeProto, original: FusedOriginal) -> Mapping[str, str]:
    """Part -> tensor, for what is made anew. Raises UntracedError for an operand that is another than the exported."""
    if len(node.input) != len(original.node.input):
        raise UntracedError(f"holds a {node.op_type} with {len(node.input)} operands, not {len(original.node.input)}")
    made = _FROM_CACHE if original.appends else _JOINED_BEFORE
    found = {}
    for exported, given in zip(original.node.input, node.input, strict=True):
        part = original.part_of(exported)
        if part in made:
            found[str(part)] = str(given)
        elif exported != given:
            raise UntracedError(f"holds a {node.op_type} that reads {given!r} in the place of {exported!r}")
    return found


def _core(site: AttentionSite, original: FusedOriginal) -> Core:
    """The site's numbers. Raises UntracedError for a site without a scale or of another type than float32."""
    if site.scale is None or site.elem_type != TensorProto.FLOAT:
        raise UntracedError("stands for a fused operator of another type or without a scale")
    return Core(site.heads, original.kv_heads, site.head_dim, site.value_dim, site.scale, original.flat)
