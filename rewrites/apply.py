"""A plan applied to a frozen decoder: the guarded (or one-layout) graph. Weights are neither read nor copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from qbpass.admission.lowering import lowered_decoder
from qbpass.admission.site import AttentionSite
from qbpass.models.contract import KVPair
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ContractError
from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.cache_steps import move_steps
from qbpass.rewrites.call_dims import CallDims, emit_call_dims
from qbpass.rewrites.chains.cache import LinkCache
from qbpass.rewrites.chains.emit import emit_chain
from qbpass.rewrites.chains.links import emit_links
from qbpass.rewrites.guard import declare_phase, emit_condition, emit_guarded, emit_which
from qbpass.rewrites.head import emit_logits_from
from qbpass.rewrites.kept_casts import keep_casts
from qbpass.rewrites.kv_cache import CacheTensors, declare_cache, emit_update, in_standard_order, numpy_dtype
from qbpass.rewrites.layouts.context import SiteContext
from qbpass.rewrites.layouts.native import emit_native
from qbpass.rewrites.layouts.pq import emit_pq
from qbpass.rewrites.layouts.qb import emit_qb
from qbpass.rewrites.lowering.fused_layouts import emit_fused_native, emit_fused_pq, keeps_fused_rows
from qbpass.rewrites.plan import RewritePlan, SitePlan
from qbpass.rewrites.row_repair.asked_for import check_asked_for
from qbpass.rewrites.row_repair.emit import emit_repairs
from qbpass.rewrites.self_draft.one_row import emit_one_row
from qbpass.rewrites.sizes import replace_sizes
from qbpass.rewrites.tags import tag_nodes

#: guarded: both layouts behind the phase guard. active, native: one layout, straight-line, no phase input.
Emission = Literal["guarded", "active", "native"]

#: The active layout with the past as an input, beside a cache that is bound further than the call reads
#: (static_graph.py). In no bundle.
Static = Literal["static"]

#: As native, for calls of one row whose bits nobody is promised (self_draft/). In no bundle.
OneRow = Literal["one_row"]

#: Graph input of a static graph, (1,) int64: rows of the cache before this call.
PAST_INPUT = "qbpass.past"

Part = Literal["key", "value"]

Emitter = Callable[[NodeBuilder, SiteContext], Any]
LAYOUT_EMITTERS: dict[str, Emitter] = {"qb": emit_qb, "pq": emit_pq}


def emitters(site: AttentionSite, layout: str) -> tuple[Emitter, Emitter]:
    """(active, native). A site that was lowered stays its fused node in the native layout."""
    active = emit_fused_pq if keeps_fused_rows(site, layout) else LAYOUT_EMITTERS[layout]
    return active, emit_native if site.fused is None else emit_fused_native


def rewrite_graph(
    frozen: Decoder,
    plan: RewritePlan,
    emission: Emission | Static | OneRow = "guarded",
    beside: RewritePlan | None = None,
) -> onnx.ModelProto:
    """The rewritten model, its external weights named as the frozen graph names them.

    beside: a second layout in the same guarded graph, run where the phase is raised by SECOND_LAYOUT (guard.py). Both
    share weights, cache and whatever else is not attention.

    Inputs: the decoder's own, without past KV; `cache.N.key|value` (n, Hkv, d) bound to the cache; value segments; the
    phase. Outputs: logits and `cache_out.N.key|value`, to be bound to the same memory as the inputs. A chained site has
    `cache.N.key|value.linkJ` (1, Hkv, capacity, d) and `cache_out.N.key|value.linkJ` instead (chains/cache.py). Raises
    ContractError where a plan and the graph do not belong together, RewriteRefused for a repair that no trial asks for.
    """
    check_asked_for(plan)
    frozen = lowered_decoder(frozen, (entry.site for entry in plan.sites))
    copy = onnx.ModelProto()  # onnx-graphsurgeon writes into the tensors of a graph's attributes
    copy.CopyFrom(frozen.model)
    graph = gs.import_onnx(copy)
    keep_casts(graph)
    _Rewriter(graph, frozen, plan, emission, beside).run()
    graph.cleanup().toposort()
    model: onnx.ModelProto = gs.export_onnx(graph, do_type_check=False)
    model.ir_version = max(frozen.model.ir_version, 10)  # node metadata came with IR 10
    if emission != "one_row":
        tag_nodes(model, plan, "active" if emission == "static" else emission)
    return model


class _Rewriter:
    """One run over one graph; every change to it is made here."""

    def __init__(
        self,
        graph: gs.Graph,
        frozen: Decoder,
        plan: RewritePlan,
        emission: Emission | Static | OneRow,
        beside: RewritePlan | None,
    ):
        self.graph = graph
        self.contract = frozen.contract
        self.beside = _checked_beside(plan, beside, emission)
        self.plan = plan
        self.emission = emission
        self.tensors = graph.tensors()
        self.producers = {output.name: node for node in graph.nodes for output in node.outputs}
        self.shared = NodeBuilder("qbpass/call")
        static = emission == "static"
        self.segments = 1 if static else plan.segments
        self.past = gs.Variable(PAST_INPUT, dtype=np.int64, shape=[1]) if static and plan.sites else None

    def run(self) -> None:
        caches = {e.site.layer: declare_cache(e.site, self.segments, e.form.clip) for e in self.plan.sites}
        self._check_every_pair_is_planned({*caches, *(chain.site.layer for chain in self.plan.chains)})
        phase = declare_phase()
        condition, second = self._conditions(phase)
        if caches:
            first = caches[min(caches)]
            token_ids = self.tensors[self.contract.input_ids]
            dims = emit_call_dims(self.shared, token_ids, first.key_in, first.segments_in, self.past)
            for entry in self.plan.sites:
                self._rewrite_site(entry, caches[entry.site.layer], dims, condition, second)
        links = self._chain_fused(condition)
        if self.emission not in ("native", "one_row"):
            repairs, width, token_ids = self.plan.repairs, self.plan.max_queries, self.tensors[self.contract.input_ids]
            emit_repairs(self.shared, repairs, width, self.producers, self.tensors, (token_ids, 1), condition)
        if self.plan.head == "asked" and self.emission != "static":
            emit_logits_from(self.shared, self.graph, self.contract.logits)
        self.graph.nodes.extend(self.shared.nodes)
        self._replace_interface(caches, links, phase if condition is not None else None)

    def _conditions(self, phase: Any) -> tuple[Any, Any]:
        """Is a layout active, and is it the second; None where the graph does not ask."""
        if self.emission != "guarded":
            return None, None
        if self.beside is None:
            return emit_condition(self.shared, phase, self.plan.phase_mask), None
        return emit_which(self.shared, phase, (self.plan.phase_mask, self.beside.phase_mask))

    def _chain_fused(self, condition: Any) -> list[LinkCache]:
        """Every fused site as a chain; the caches of all links."""
        if not self.plan.chains:
            return []
        active = condition if self.emission == "guarded" else self.emission != "native"
        links = emit_links(self.shared, self.tensors[self.contract.input_ids], active, self.plan.max_queries)
        caches = []
        for entry in self.plan.chains:
            node = self.producers[entry.site.node]
            builder = NodeBuilder(f"qbpass/{entry.site.name}/chain", constants=self.shared.constants)
            last, of_links = emit_chain(builder, entry.site, node, links, self.graph.opset)
            output = self.tensors[entry.site.output]
            node.inputs.clear()
            node.outputs.clear()
            last.outputs.append(output)
            self.graph.nodes.extend([*builder.nodes, last])
            caches += of_links
        return caches

    def _check_every_pair_is_planned(self, planned: set[int]) -> None:
        missing = [pair.layer for pair in self.contract.kv if pair.layer not in planned]
        if missing:
            raise ContractError(
                f"the plan leaves out layer(s) {missing}: every layer's cache must be rewritten; see `qbpass admit`"
            )

    def _rewrite_site(self, entry: SitePlan, cache: CacheTensors, dims: CallDims, condition: Any, second: Any) -> None:
        site = entry.site
        self._state_dtypes(site)
        builder = NodeBuilder(f"qbpass/{site.name}", constants=self.shared.constants)
        new = {
            "key": in_standard_order(builder, self.tensors[site.new_key], site.key_axes, "key"),
            "value": in_standard_order(builder, self.tensors[site.new_value], site.value_axes, "value"),
        }
        new = move_steps(builder, site, new, self.producers, self.tensors)
        emit_update(builder, site, cache, new, dims)
        mask = self.tensors[site.mask] if site.mask is not None else None
        context = SiteContext(
            site=site,
            form=entry.form,
            dims=dims,
            q_1HqD=self.tensors[site.q],
            key_nHD=cache.key,
            value_nHD=cache.value,
            key_prefixes=self._prefixes(builder, site, cache, dims, "key"),
            value_prefixes=self._prefixes(builder, site, cache, dims, "value"),
            mask=mask,
            row_mask=None if mask is None else dims.row_mask(mask),
            original={name: self.producers[name] for name in site.nodes.all()},
            max_queries=self.plan.max_queries,
            outer=self.tensors,
        )
        replace_sizes(self.tensors, self.producers, site, dims)
        self._emit(builder, context, condition, second)
        self.graph.nodes.extend(builder.nodes)

    def _prefixes(
        self, builder: NodeBuilder, site: AttentionSite, cache: CacheTensors, dims: CallDims, part: Part
    ) -> list[Any]:
        """The key or value segments, none of which may be read before this call's rows are written.

        A segment is a second input over memory that ScatterND writes. In a guarded graph its only readers are in a
        branch that also reads the written cache, and an If runs when all that its branches read is there. A
        straight-line graph has no such node, so the order is made there.
        """
        if self.emission == "guarded":
            return cache.segments_in if part == "value" else cache.key_segments_in
        return emit_ordered_prefixes(builder, site, cache, dims, part)

    def _state_dtypes(self, site: AttentionSite) -> None:
        """Not every exporter declares types of inner tensors; admission has worked them out."""
        for name in filter(None, (site.q, site.new_key, site.new_value, site.mask, site.output)):
            tensor, dtype = self.tensors[name], numpy_dtype(site.type_of(name))
            if tensor.dtype not in (None, dtype):
                raise ContractError(f"{site.name}: {name!r} is {tensor.dtype} and was admitted as {dtype}")
            tensor.dtype = dtype

    def _emit(self, builder: NodeBuilder, context: SiteContext, condition: Any, second: Any) -> None:
        active, native = emitters(context.site, self.plan.layout)
        if self.beside is not None:
            active = self._either(self.beside, second)
        output = self.tensors[context.site.output]
        if self.emission == "guarded":
            node = emit_guarded(
                builder, condition, lambda b: active(b, context), lambda b: native(b, context), self.graph
            )
        else:
            kind = "active" if self.emission == "static" else self.emission
            part = NodeBuilder(f"{builder.scope}/{kind}", constants=builder.constants)
            result = {"active": active, "native": native, "one_row": emit_one_row}[kind](part, context)
            builder.nodes.extend(part.nodes)
            node = gs.Node("Identity", f"{builder.scope}/output", inputs=[result])
        for name in context.site.nodes.all():  # the copies are emitted: the originals go
            original = context.original[name]
            original.inputs.clear()
            original.outputs.clear()
        node.outputs.append(output)
        builder.nodes.append(node)

    def _either(self, beside: RewritePlan, second: Any) -> Callable[[NodeBuilder, SiteContext], Any]:
        """Emits the first layout and the second behind a guard of their own."""
        forms = {entry.site.name: entry.form for entry in beside.sites}

        def emit(builder: NodeBuilder, context: SiteContext) -> Any:
            other = replace(context, form=forms[context.site.name])
            node = emit_guarded(
                builder,
                second,
                lambda b: emitters(context.site, beside.layout)[0](b, other),
                lambda b: emitters(context.site, self.plan.layout)[0](b, context),
                self.graph,
            )
            result = gs.Variable(f"{builder.scope}/either", dtype=self.tensors[context.site.output].dtype)
            node.outputs.append(result)
            builder.nodes.append(node)
            return result

        return emit

    def _replace_interface(self, caches: dict[int, CacheTensors], links: list[LinkCache], phase: Any) -> None:
        gone = {name for pair in self.contract.kv for name in _pair_inputs(pair)}
        left = {name for pair in self.contract.kv for name in (pair.present_key, pair.present_value)}
        self.graph.inputs = [tensor for tensor in self.graph.inputs if tensor.name not in gone]
        self.graph.outputs = [tensor for tensor in self.graph.outputs if tensor.name not in left]
        for layer in sorted(caches):
            cache = caches[layer]
            self.graph.inputs += [cache.key_in, cache.value_in, *cache.segments_in, *cache.key_segments_in]
            self.graph.outputs += [cache.key, cache.value]
        for link in links:
            self.graph.inputs += link.inputs
            self.graph.outputs += link.outputs
        if phase is not None:
            self.graph.inputs.append(phase)
        if self.past is not None:
            self.graph.inputs.append(self.past)


def _checked_beside(plan: RewritePlan, beside: RewritePlan | None, emission: str) -> RewritePlan | None:
    """Raises ContractError for a second layout that can't share what is not attention."""
    if beside is None:
        return None
    of_sites = [[(entry.site.name, entry.form.clip) for entry in one.sites] for one in (plan, beside)]
    shared = plan.repairs == beside.repairs and plan.head == beside.head and plan.max_queries == beside.max_queries
    if emission != "guarded" or plan.chains or beside.chains or of_sites[0] != of_sites[1] or not shared:
        raise ContractError("two layouts go into one guarded graph where only their forms differ")
    if beside.segments > 1 and beside.extents != plan.extents:
        raise ContractError("two layouts in one graph read the same value segments, or the second reads none")
    return beside


def _pair_inputs(pair: KVPair) -> tuple[str, str]:
    return pair.past_key, pair.past_value


def emit_ordered_prefixes(
    builder: NodeBuilder, site: AttentionSite, cache: CacheTensors, dims: CallDims, part: Part = "value"
) -> list[Any]:
    """Key or value segments (n_s, Hkv, d) whose shapes are computed from the written cache.

    The data dependency orders the read behind the write, and Reshape only renames memory.
    """
    written, given, width = cache.value, cache.segments_in, site.value_dim
    if part == "key":
        written, given, width = cache.key, cache.key_segments_in, site.head_dim
    prefixes = []
    if given:
        bounds = builder.node("Shape", [written], f"{part}/bounds", dtype="int64")
    for index, prefix in enumerate(given):
        wanted = dims.shape(dims.segment_extents[index], site.kv_heads, width)
        shape = builder.node("Min", [bounds, wanted], f"{part}/segment{index}/shape", dtype="int64")
        ordered = builder.reshape(prefix, shape, f"{part}/segment{index}")
        ordered.shape = prefix.shape
        prefixes.append(ordered)
    return prefixes
