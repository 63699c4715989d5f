"""A session whose nodes run where they were asked to run: placement is observed, and a silent CPU node is an error.

Source: session entry session.record_ep_graph_assignment_info, ONNX Runtime 1.24. session.disable_cpu_ep_fallback would
be the shorter way, but it counts arithmetic on sizes, too, which ONNX Runtime itself moves to the CPU: with it no
exported decoder loads on CUDA. So the assignment is read, and that arithmetic is let through (admission/size_nodes.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx

from qbpass.admission.placement import PlacedNode, assigned_nodes
from qbpass.admission.probes.trial import RECORDING
from qbpass.admission.size_nodes import size_nodes
from qbpass.models.errors import ProviderError
from qbpass.models.session import PROVIDERS, SessionSpec, open_session
from qbpass.models.weight_sources import WeightSources

#: Providers of a device whose memory the CPU's kernels do not share.
OF_DEVICES = frozenset({"cuda"})

_NAMED = 3


def open_placed(graph: Path | bytes, spec: SessionSpec, *, weights: WeightSources | None = None) -> Any:
    """As `open_session`. Raises ProviderError, too, where a device's provider left nodes of the graph to another."""
    if spec.provider not in OF_DEVICES:
        return open_session(graph, spec, weights=weights)
    session = open_session(graph, spec, weights=weights, entries=RECORDING)
    assigned = assigned_nodes(session)
    if assigned is None:
        raise ProviderError(
            "this onnxruntime does not say where nodes run (1.24 and later do), so that nodes on the CPU would go "
            "unseen: install a later onnxruntime-gpu"
        )
    model = onnx.load(graph, load_external_data=False) if isinstance(graph, Path) else onnx.ModelProto.FromString(graph)
    check_placement(assigned, model, PROVIDERS[spec.provider])
    return session


def check_placement(assigned: Iterable[PlacedNode], model: onnx.ModelProto, provider: str) -> None:
    """Raises ProviderError that names the nodes which another provider was given, but for arithmetic on sizes."""
    strays = stray_nodes(assigned, model, provider)
    if strays:
        shown = ", ".join(f"{node.operator} {node.name!r}" for node in strays[:_NAMED])
        more = f" and {len(strays) - _NAMED} more" if len(strays) > _NAMED else ""
        raise ProviderError(
            f"{strays[0].provider} was given {len(strays)} node(s) of a graph for {provider} ({shown}{more}): "
            "export the model without these operators or types, see `qbpass support`, or use another --provider"
        )


def stray_nodes(assigned: Iterable[PlacedNode], model: onnx.ModelProto, provider: str) -> list[PlacedNode]:
    """Nodes that another provider was given, but for arithmetic on sizes."""
    elsewhere = [node for node in assigned if node.provider != provider]
    if not elsewhere:
        return []
    of_sizes = size_nodes(model.graph)
    return [node for node in elsewhere if node.name not in of_sizes]
