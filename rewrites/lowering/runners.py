"""The fused operator of a site alone, and the rewritten site alone, run on the same operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from qbpass.admission.site import AttentionSite
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ModelFileError
from qbpass.models.graph_order import node_reads
from qbpass.models.session import SessionSpec, one_line, open_session
from qbpass.rewrites.apply import Emission, rewrite_graph
from qbpass.rewrites.extents import segment_extents
from qbpass.rewrites.kv_cache import cache_name, segment_name, updated_name
from qbpass.rewrites.lowering.operands import Array, FusedOperands, call_feeds, fused_of, in_heads
from qbpass.rewrites.plan import RewritePlan
from qbpass.rewrites.site_graph import plan_alone, site_alone
from qbpass.rewrites.site_runner import FormNotRun


class OriginalRunner:
    """The fused node of the frozen graph and nothing else: what the reference computes."""

    def __init__(self, frozen: Decoder, site: AttentionSite, spec: SessionSpec) -> None:
        original = fused_of(site)
        weights = {tensor.name: tensor for tensor in frozen.model.graph.initializer}
        graph = helper.make_graph(
            [original.node],
            "fused",
            [_declared(name, original.types[name]) for name in original.operands if name not in weights],
            [_declared(str(name), site.elem_type) for name in original.node.output if name],
            [weights[name] for name in original.operands if name in weights],
        )
        model = helper.make_model(graph, opset_imports=frozen.model.opset_import, ir_version=frozen.model.ir_version)
        self.site, self.spec = site, spec
        self.session = open_session(model.SerializeToString(), spec, weights=frozen.weights)

    def block(self, operands: FusedOperands, past: int, queries: int) -> Array:
        """(1, H, q, dv) and, where the operator appends, its new key and value rows behind it: (1, H + 2*Hkv, q, d)."""
        original = fused_of(self.site)
        parts = [part for part in ("output", "present_key", "present_value") if part in original.parts]
        names = [original.parts[part] for part in parts]
        found = dict(zip(parts, run(self, names, call_feeds(self.site, operands, past, queries)), strict=True))
        output = found["output"]
        if original.flat:
            output = output.reshape(1, queries, self.site.heads, -1).transpose(0, 2, 1, 3)
        if not original.appends:
            return output
        return np.concatenate([output, found["present_key"][:, :, past:], found["present_value"][:, :, past:]], axis=1)


class LoweredRunner:
    """The site's primitives as admission wrote them, over the exported graph's own cache: not rewritten."""

    def __init__(self, frozen: Decoder, site: AttentionSite, spec: SessionSpec) -> None:
        model = _without_unread_inputs(site_alone(frozen, site).model)
        self.site, self.spec, self.frozen = site, spec, frozen
        self.session = open_session(model.SerializeToString(), spec, weights=frozen.weights)
        self.inputs = {entry.name for entry in self.session.get_inputs()}

    def block(self, operands: FusedOperands, past: int, queries: int) -> Array:
        """As OriginalRunner's."""
        site, extent = self.site, past + queries
        feeds = call_feeds(site, operands, past, queries)
        feeds[self.frozen.contract.input_ids] = np.zeros((1, queries), np.int64)
        for before, rows, new in (
            (site.past_key, operands.key_nHD, site.new_key),
            (site.past_value, operands.value_nHD, site.new_value),
        ):
            feeds[str(before)] = in_heads(rows[:past])
            if not fused_of(site).appends:
                feeds[str(new)] = in_heads(rows[past:extent])
        for pair in self.frozen.contract.kv:  # a graph asks for any layer's size
            feeds.setdefault(pair.past_key, np.zeros((1, pair.kv_heads, past, pair.key_dim), np.float32))
        names = [site.output, str(site.present_key), str(site.present_value)]
        output, keys, values = run(self, names, {name: feeds[name] for name in self.inputs})
        if not fused_of(site).appends:
            return output
        return np.concatenate([output, keys[:, :, past:], values[:, :, past:]], axis=1)


class RewrittenRunner:
    """The site alone as it is emitted, with its cache update: straight-line, active or native."""

    def __init__(
        self, frozen: Decoder, plan: RewritePlan, site: AttentionSite, emission: Emission, spec: SessionSpec
    ) -> None:
        self.plan, self.site, self.spec, self.frozen = plan_alone(plan, site), site, spec, frozen
        model = _without_unread_inputs(rewrite_graph(site_alone(frozen, site), self.plan, emission))
        self.session = open_session(model.SerializeToString(), spec, weights=frozen.weights)
        self.inputs = {entry.name for entry in self.session.get_inputs()}

    def block(self, operands: FusedOperands, past: int, queries: int) -> Array:
        """As OriginalRunner's. The cache comes without this call's rows, which are not numbers in it."""
        site, extent, layer = self.site, past + queries, self.site.layer
        feeds = call_feeds(site, operands, past, queries)
        feeds[self.frozen.contract.input_ids] = np.zeros((1, queries), np.int64)
        for part, rows, new in (
            ("key", operands.key_nHD, site.new_key),
            ("value", operands.value_nHD, site.new_value),
        ):
            unwritten = rows[:extent].copy()
            unwritten[past:] = np.nan
            feeds[cache_name(layer, part)] = unwritten
            if not fused_of(site).appends:
                feeds[str(new)] = in_heads(rows[past:extent])
        ends = segment_extents(past, queries, self.plan.extents, self.plan.segments)
        for index, end in enumerate(ends[:-1]):
            feeds[segment_name(layer, index)] = operands.value_nHD[:end]
            feeds[segment_name(layer, index, "key")] = operands.key_nHD[:end]
        names = [site.output, updated_name(layer, "key"), updated_name(layer, "value")]
        output, keys, values = run(self, names, {name: feeds[name] for name in self.inputs})
        if not fused_of(site).appends:
            return output
        return np.concatenate([output, in_heads(keys[past:]), in_heads(values[past:])], axis=1)


def _without_unread_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Sizes of other layers' caches were asked for, and are not any more."""
    read = {name for node in model.graph.node for name in node_reads(node)}
    for value in [value for value in model.graph.input if value.name not in read]:
        model.graph.input.remove(value)
    return model


def run(
    runner: OriginalRunner | LoweredRunner | RewrittenRunner, names: list[str], feeds: dict[str, Any]
) -> list[Array]:
    try:
        found: list[Array] = runner.session.run(names, feeds)
    except Exception as error:  # ONNX Runtime raises a family of private types
        kind = FormNotRun if isinstance(runner, RewrittenRunner) else ModelFileError
        raise kind(f"{runner.site.name} could not be run on {runner.spec.provider}: {one_line(error)}") from error
    return found


def _declared(name: str, kind: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, None)
