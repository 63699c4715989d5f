"""Which sites are the same attention over other tensors: they need one audit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import onnx

from qbpass.admission.strides.operands import Memory


def graph_digest(model: onnx.ModelProto, leaves: Mapping[str, Memory]) -> str:
    """A digest of a cut-out graph in which operands are named by what they are and other tensors by their order.

    Two graphs with one digest run the same operators with the same attributes and constants on the same operands.
    """
    names = {name: f"{leaves[name].root} {leaves[name].numbers.shape}" for name in (i.name for i in model.graph.input)}
    constants = {constant.name: constant for constant in model.graph.initializer}
    digest = hashlib.sha256()
    for node in model.graph.node:
        twin = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
        twin.attribute.extend(sorted(node.attribute, key=lambda entry: entry.name))
        for name in node.input:
            if name in constants:
                bare = onnx.TensorProto()
                bare.CopyFrom(constants[name])
                bare.name = ""
                digest.update(bare.SerializeToString(deterministic=True))
                twin.input.append("constant")
            else:
                twin.input.append(names.get(name, name))
        for name in node.output:
            names[name] = f"tensor {len(names)}" if name else ""
            twin.output.append(names[name])
        digest.update(twin.SerializeToString(deterministic=True))
    return digest.hexdigest()
