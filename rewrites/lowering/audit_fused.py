"""What a fused node that a rewrite keeps reads.

Nobody sees into the node. What can be shown is that it is the exported operator, attribute by attribute, on the
exported operands, and that its keys and values are the cache's: it is spelled out where it stands, and followed like
any other.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto

from qbpass.admission.lowering.call_tensors import AT
from qbpass.admission.lowering.core import Core, write_core
from qbpass.admission.lowering.spelled import in_heads
from qbpass.admission.lowering.writer import Writer
from qbpass.admission.original import FusedOriginal
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides.cut_graph import GraphCutter
from qbpass.admission.strides.elements import UntracedError
from qbpass.admission.strides.operands import Memory

#: In the names of what a fused node is spelled out into: no node of the graph that runs.
SPELLED = "/fused/spelled"

#: Operands that a rewrite makes anew out of the cache; every other one must be the exported tensor itself.
_FROM_CACHE = frozenset({"past_key", "past_value"})
_JOINED_BEFORE = frozenset({"k", "v"})
#: Operands that are cut to one row, or to its keys, where the node runs row by row: in the scope `/query<number>/`.
_CUT = frozenset({"q", "k", "v", "mask", "attention_bias"})
_ROW = "/active/query"


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
    row = _ROW in node.name
    operands = _operands(node, original, row=row)
    core = _core(site, original)
    kv = Core(core.heads, core.kv_heads, core.head_dim, core.value_dim, core.scale, original.flat_kv)
    at = node.name.removesuffix("/fused") + SPELLED
    q, new_key, new_value = site.q, site.new_key or "", site.new_value or ""
    if row:
        q = in_heads(w, at, core, "q", operands["q"])
    if row or not original.appends:
        new_key, new_value = (in_heads(w, at, kv, part, operands[part]) for part in ("k", "v"))
    key, value = new_key, new_value
    if original.appends:
        key = w.node("Concat", [operands["past_key"], new_key], f"{at}/keys", axis=2)
        value = w.node("Concat", [operands["past_value"], new_value], f"{at}/values", axis=2)
    mask = _row_mask(w, at, site, original, operands, key) if row else site.mask
    write_core(w, at, core, q, key, value, mask, str(node.output[0]))


def raw_leaves(site: AttentionSite, leaves: Mapping[str, Memory]) -> dict[str, Memory]:
    """The operands of a site's fused node that are cut row by row, as the same elements as what is spelled out of them:
    queries and new rows as (1, q, heads * d), and the mask where it is the operator's alone.
    """
    original, found = site.fused, {}
    if original is None:
        return {}
    for part, spelled in (("q", site.q), ("k", site.new_key), ("v", site.new_value)):
        raw = original.parts.get(part)
        if raw is None or raw in leaves or spelled is None or not (part == "q" or original.appends):
            continue
        if spelled in leaves and original.row_axis(part) == 1:
            _, heads, rows, width = leaves[spelled].numbers.shape
            numbers = leaves[spelled].numbers.transpose(0, 2, 1, 3).reshape(1, rows, heads * width)
            found[raw] = Memory.own(raw, leaves[spelled].root, numbers)
    if (mask := _own_mask(site, original)) is not None and mask not in leaves and site.mask:
        found[mask] = Memory.own(mask, leaves[site.mask].root, leaves[site.mask].numbers)
    return found


def _own_mask(site: AttentionSite, original: FusedOriginal) -> str | None:
    """The node's mask where the site's is nothing else."""
    mask = original.parts.get("mask") or original.parts.get("attention_bias")
    return mask if mask is not None and site.mask in (mask, f"{AT}/mask/{mask}") else None


def _row_mask(
    w: Writer, at: str, site: AttentionSite, original: FusedOriginal, operands: Mapping[str, str], key: str
) -> str | None:
    """The row's mask as its node is given it; the site's, cut alike, where the order of rows is the operator's own."""
    given = operands.get("mask") or operands.get("attention_bias")
    if given is not None and _own_mask(site, original) is None:
        raise UntracedError("joins the operator's own order to a mask: row by row that is not followed")
    if given is not None or site.mask is None:
        return given
    cut = next(node for node in w.nodes if operands["q"] in node.output)  # queries are cut at the row's bounds
    row = w.node("Slice", [site.mask, *cut.input[1:3], w.constant([-2])], f"{at}/mask/row")
    end = w.node("Shape", [key], f"{at}/extent", start=2, end=3)
    return w.node("Slice", [row, w.constant([0]), end, w.constant([-1])], f"{at}/mask")


def _operands(node: onnx.NodeProto, original: FusedOriginal, *, row: bool) -> Mapping[str, str]:
    """Part -> tensor, for what is made anew. Raises UntracedError for an operand that is another than the exported."""
    if len(node.input) != len(original.node.input):
        raise UntracedError(f"holds a {node.op_type} with {len(node.input)} operands, not {len(original.node.input)}")
    made = (_FROM_CACHE if original.appends else _JOINED_BEFORE) | (_CUT if row else frozenset())
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
