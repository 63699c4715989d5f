"""Every fused attention of a decoder that can be spelled out, spelled out."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

import onnx
from onnx import helper

from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.fused.fused_node import FusedNode
from qbpass.admission.fused.fused_ties import FusedTies
from qbpass.admission.fused.lowerable import lowerable
from qbpass.admission.fused.operators import fused_operator
from qbpass.admission.fused.subject import FusedSubject
from qbpass.admission.lowering.call_tensors import CallTensors
from qbpass.admission.lowering.core import Core
from qbpass.admission.lowering.gqa import spell_gqa
from qbpass.admission.lowering.mha import spell_mha
from qbpass.admission.lowering.onnx_attention import spell_onnx_attention
from qbpass.admission.lowering.spelled import Operands, write_attention
from qbpass.admission.lowering.writer import PREFIX, Writer
from qbpass.admission.original import FusedOriginal
from qbpass.admission.report import Diagnostic
from qbpass.admission.site import AttentionSite
from qbpass.models.contract import CachePair
from qbpass.models.decoder import Decoder

_CACHE_RANK = 4  # (1, Hkv, rows, width)
_FLAT = 3  # the rank of (1, rows, heads * width)

Spell = Callable[[Writer, str, FusedSubject, CallTensors], tuple[Core, Operands]]
SPELLERS: Mapping[str, Spell] = {"onnx_attention": spell_onnx_attention, "gqa": spell_gqa, "mha": spell_mha}


@dataclass(frozen=True)
class Lowered:
    """decoder: with primitives in the place of fused nodes; originals: (1, H, q, dv) output -> the node it was.

    left: node_name of a fused node that is not lowered -> why.
    """

    decoder: Decoder
    originals: Mapping[str, FusedOriginal] = field(default_factory=dict)
    left: Mapping[str, Diagnostic] = field(default_factory=dict)


def lower(decoder: Decoder, flow: Flow | None = None, only: Container[str] | None = None) -> Lowered:
    """The same decoder with lowerable fused attentions as primitives; its own where there is none. Changes nothing.

    only: names of the nodes to lower (node_name), where not all are. A site has the same tensors whichever are lowered.
    """
    flow = flow or Flow.of(decoder)
    found = [subject for subject in _subjects(flow) if only is None or node_name(subject.proto) in only]
    answers = {node_name(subject.proto): lowerable(subject) for subject in found}
    left = {name: diagnostic for name, diagnostic in answers.items() if diagnostic is not None}
    subjects = {name: subject for subject in found if (name := node_name(subject.proto)) not in left}
    if not subjects or decoder.interface.input_ids is None:
        return Lowered(decoder, left=left)
    w = Writer()
    past = next((pair.past_key for pair in decoder.interface.kv if pair.past_key), None)
    call = CallTensors(w, decoder.interface.input_ids, past)
    originals = {}
    for node in decoder.model.graph.node:
        subject = subjects.get(node_name(node))
        if subject is None:
            w.nodes.append(node)
            continue
        output, original = _spell(w, subject, call)
        originals[output] = original
    model = _model(decoder.model, w)
    _state_widths(model.graph, decoder.interface.kv)
    return Lowered(replace(decoder, model=model), originals, left)


def lowered_decoder(decoder: Decoder, sites: Iterable[AttentionSite]) -> Decoder:
    """The decoder that `sites` are read in: lowered where one of them stands for a fused node that is still there."""
    wanted = {node_name(site.fused.node) for site in sites if site.fused is not None}
    fused = {node_name(node) for node in decoder.model.graph.node if fused_operator(node) is not None}
    return lower(decoder, only=wanted).decoder if wanted & fused else decoder


def _subjects(flow: Flow) -> Iterable[FusedSubject]:
    """Fused attentions of the graph itself; those in control-flow bodies are never lowered."""
    ties = FusedTies(flow)
    for node in flow.nodes:
        operator = fused_operator(node)
        if operator is not None and operator.kind in SPELLERS:
            fused = FusedNode(node, flow)
            reading = operator.read(fused)
            yield FusedSubject(fused, operator.kind, reading, ties.find(reading.tensors, {}))


def _spell(w: Writer, subject: FusedSubject, call: CallTensors) -> tuple[str, FusedOriginal]:
    at = f"{PREFIX}{subject.name}"
    core, operands = SPELLERS[subject.kind](w, at, subject, call)
    parts = dict(subject.reading.tensors)
    output = write_attention(w, at, core, parts, operands)
    types = {name: subject.flow.elem_type(name) for name in subject.proto.input if name}
    flat_kv = core.flat if "k" not in parts else subject.node.rank(parts["k"]) == _FLAT
    positions = subject.node.dim(parts.get("cos_cache"), 0)
    return output, FusedOriginal(
        subject.proto, subject.kind, parts, types, core.kv_heads, core.flat, flat_kv, positions
    )


def _state_widths(graph: onnx.GraphProto, pairs: Iterable[CachePair]) -> None:
    """An exporter may leave a cache's widths open, and its fused operators know them; a Concat does not."""
    widths: dict[str, tuple[int | None, int | None]] = {}
    for pair in pairs:
        widths |= {name: (pair.kv_heads, pair.key_dim) for name in (pair.past_key, pair.present_key) if name}
        widths |= {name: (pair.kv_heads, pair.value_dim) for name in (pair.past_value, pair.present_value) if name}
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        for axis, width in zip((1, 3), widths.get(value.name, ()), strict=False):
            if width is not None and len(dims) == _CACHE_RANK:
                dims[axis].dim_value = width


def _model(model: onnx.ModelProto, w: Writer) -> onnx.ModelProto:
    lowered = onnx.ModelProto()
    lowered.CopyFrom(model)
    del lowered.graph.node[:]
    lowered.graph.node.extend(w.nodes)
    lowered.graph.initializer.extend(w.constants.values())
    if all(entry.domain != "com.microsoft" for entry in lowered.opset_import):
        lowered.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return lowered
