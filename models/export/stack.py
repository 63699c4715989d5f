"""Repeats a traced decoder layer in the ONNX graph, as often as the model has layers.

Induction, read off the graph: layers 1 and 2 of the trace have the same nodes in the same order, and each input of
layer 2, compared with layer 1's, is one of four: (1) the same place inside the layer, (2) the same value outside of it,
(3) the weight or past of the same name with the layer's number, (4) the same module's result in the layer before. Layer
k + 1 follows from layer k by these rules.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import onnx_ir as ir

from qbpass.models.export.layers import TRACED_LAYERS

SCOPES_KEY = "pkg.torch.onnx.name_scopes"  # torch's exporter: the modules a node was traced in
BEFORE, LAST = TRACED_LAYERS - 2, TRACED_LAYERS - 1  # the two layers compared


class NotUniform(Exception):
    """The traced layers differ by more than their weights and past: the model must be traced whole."""


def repeat_last_layer(model: ir.Model, prefix: str, layers: int, weights: dict[str, Any]) -> None:
    """Give `model`, traced with TRACED_LAYERS layers, `layers` of them. In place.

    prefix: the name its weights have up to the layer's number; weights: tensors of all layers by name.
    Raises NotUniform, before anything is changed, where the proof above fails.
    """
    template = _Template(model.graph, prefix)
    previous = template.own_outputs()
    for layer in range(TRACED_LAYERS, layers):
        previous = template.append_layer(layer, previous, weights)
    template.redirect_readers(previous)
    model.graph.sort()


class _Template:
    """The last traced layer's nodes, and where each of their outside inputs comes from."""

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        self.graph = graph
        self.prefix = prefix
        groups = _nodes_by_layer(graph, prefix)
        self.nodes = groups.get(LAST, [])
        before = groups.get(BEFORE, [])
        self.advance = _paired_outputs(before, self.nodes)  # a value of layer 1 -> the value of layer 2 in its place
        self.inside = set(self.advance.values())
        self.carried = self._check_inputs(before, groups.get(BEFORE - 1, []))
        # Nodes behind the stack that read the last layer; graph outputs are none: present.N stays with its layer.
        self.readers = [
            (node, index)
            for value in self.inside
            for node, index in value.uses()
            if not any(output in self.inside for output in node.outputs)
        ]
        self._check_readers(before)

    def own_outputs(self) -> dict[ir.Value, ir.Value]:
        return {value: value for value in self.inside}

    def append_layer(
        self, layer: int, previous: dict[ir.Value, ir.Value], weights: dict[str, Any]
    ) -> dict[ir.Value, ir.Value]:
        """Add one layer behind the one whose values are `previous`. Gives the new layer's values, by the template's."""
        current: dict[ir.Value, ir.Value] = {}
        renumbered: dict[ir.Value, ir.Value] = {}

        def resolve(value: ir.Value | None) -> ir.Value | None:
            if value is None or value in current:
                return value if value is None else current[value]
            if value in self.carried:
                return previous[self.carried[value]]
            if self._numbered(value.name or "", LAST) is None:
                return value
            if value not in renumbered:
                renumbered[value] = self._renumber(value, layer, weights)
            return renumbered[value]

        for node in self.nodes:
            copy = ir.Node(
                node.domain,
                node.op_type,
                [resolve(value) for value in node.inputs],
                list(node.attributes.values()),
                num_outputs=len(node.outputs),
                overload=node.overload,
                version=node.version,
                name=f"{node.name}_layer{layer}",
            )
            for old, new in zip(node.outputs, copy.outputs, strict=True):
                new.name = self._numbered(old.name or "", LAST, layer) or f"{old.name}_layer{layer}"
                new.shape, new.type, new.const_value = old.shape, old.type, None
                current[old] = new
            self.graph.append(copy)
        self.graph.outputs.extend(current[value] for value in list(self.graph.outputs) if value in current)
        return current

    def redirect_readers(self, last: dict[ir.Value, ir.Value]) -> None:
        """What read the template's values behind the stack now reads the last layer's."""
        for node, index in self.readers:
            node.replace_input_with(index, last[node.inputs[index]])  # type: ignore[index]

    def _renumber(self, value: ir.Value, layer: int, weights: dict[str, Any]) -> ir.Value:
        name = self._numbered(value.name or "", LAST, layer)
        assert name is not None
        copy = ir.Value(name=name, shape=value.shape, type=value.type)
        if value.is_graph_input():
            self.graph.inputs.append(copy)
        else:
            copy.const_value = ir.tensor_adapters.TorchTensor(weights[name].detach(), name=name)
            self.graph.register_initializer(copy)
        return copy

    def _numbered(self, name: str, number: int, new: int | None = None) -> str | None:
        """`name` with `new` for the layer's `number`; None where it is no weight, past or present of that layer."""
        match = re.fullmatch(rf"({re.escape(self.prefix)}\.|past_key_values\.|present\.){number}(\..+)", name)
        return None if match is None else f"{match[1]}{number if new is None else new}{match[2]}"

    def _check_inputs(self, before: list[ir.Node], earlier: list[ir.Node]) -> dict[ir.Value, ir.Value]:
        """Sort layer 2's inputs into the four cases. Gives case 4: layer 1's value -> the template's in its place."""
        in_earlier = {output for node in earlier for output in node.outputs}
        carried: dict[ir.Value, ir.Value] = {}
        for old_node, new_node in zip(before, self.nodes, strict=True):
            for old, new in zip(old_node.inputs, new_node.inputs, strict=True):
                if old in self.advance:
                    if self.advance[old] is not new:  # case 1
                        raise NotUniform(f"{new_node.name} reads {new} where {old_node.name} reads {old}")
                elif old is new:  # case 2
                    if new in self.inside:
                        raise NotUniform(f"{old_node.name} reads a later layer's value {new}")
                elif old is None or new is None:
                    raise NotUniform(f"{new_node.name} has another number of inputs than {old_node.name}")
                elif new in self.advance and old in in_earlier and self._role(old) == self._role(new):  # case 4
                    carried[new] = self.advance[new]
                elif self._numbered(old.name or "", BEFORE, LAST) != new.name:  # case 3
                    raise NotUniform(f"{new_node.name} reads {new} where {old_node.name} reads {old}")
        return carried

    def _role(self, value: ir.Value) -> tuple[Any, ...]:
        """What computes a value, but for the layer's number and the node's own name."""
        producer = value.producer()
        scopes = [] if producer is None else ast.literal_eval(producer.metadata_props.get(SCOPES_KEY, "[]"))
        unnumbered = [re.sub(rf"^{re.escape(self.prefix)}\.\d+", self.prefix, scope) for scope in scopes[:-1]]
        return (producer and producer.op_type), value.index(), unnumbered

    def _check_readers(self, before: list[ir.Node]) -> None:
        behind = {node for node, _index in self.readers}
        own = {*before, *self.nodes}
        for value in self.advance:
            for node, _index in value.uses():
                if node in behind or node not in own:
                    raise NotUniform(f"{node.name} reads layer {BEFORE}'s {value} from outside the stack")


def _nodes_by_layer(graph: ir.Graph, prefix: str) -> dict[int, list[ir.Node]]:
    """Nodes by the number of the layer they were traced in; a node without scopes goes with what it reads."""
    pattern = re.compile(rf"{re.escape(prefix)}\.(\d+)(\.|$)")
    layer_of: dict[ir.Node, int] = {}
    groups: dict[int, list[ir.Node]] = {}
    for node in graph:
        scopes = node.metadata_props.get(SCOPES_KEY)
        if scopes is not None:
            numbers = [int(match[1]) for scope in ast.literal_eval(scopes) if (match := pattern.match(scope))]
        else:
            producers = [value.producer() for value in node.inputs if value is not None]
            numbers = [layer_of[producer] for producer in producers if producer in layer_of]
        if numbers:
            layer_of[node] = max(numbers)
            groups.setdefault(max(numbers), []).append(node)
    return groups


def _paired_outputs(before: list[ir.Node], last: list[ir.Node]) -> dict[ir.Value, ir.Value]:
    """Outputs of layer 1 -> outputs of layer 2, node by node. Raises NotUniform where two nodes differ."""
    if not last or len(before) != len(last):
        raise NotUniform(f"layer {BEFORE} has {len(before)} nodes and layer {LAST} has {len(last)}")
    paired: dict[ir.Value, ir.Value] = {}
    for old, new in zip(before, last, strict=True):
        if _kind(old) != _kind(new):
            raise NotUniform(f"{new.name} is not the same operation as {old.name}")
        paired.update(zip(old.outputs, new.outputs, strict=True))
    return paired


def _kind(node: ir.Node) -> tuple[Any, ...]:
    attributes = sorted((name, repr(attribute.value)) for name, attribute in node.attributes.items())
    return node.domain, node.op_type, node.overload, len(node.inputs), len(node.outputs), attributes
