"""Which provider ran each node, as a running session says. What a provider is expected to support is another question
(admission/backends), whose answers are never mixed with these.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qbpass.admission.calls.call import Call
from qbpass.admission.probes.feeds import decoder_feeds, longer
from qbpass.admission.probes.trial import RECORDING
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ModelFileError
from qbpass.models.session import PROVIDERS, SessionSpec, one_line, open_session

#: The call that is profiled: a block behind a short text.
OBSERVED_CALL = Call(4, 60)


@dataclass(frozen=True)
class PlacedNode:
    """A node and its provider. A node that a provider compiled from many has a name of the provider's making."""

    provider: str
    operator: str
    domain: str
    name: str


@dataclass(frozen=True)
class Placement:
    """assigned: each node of the graph, as ONNX Runtime recorded it when it divided the graph among providers; None
    where this ONNX Runtime does not record it. executed: each node that ran in one call, from its profile.
    """

    asked: str
    assigned: tuple[PlacedNode, ...] | None
    executed: tuple[PlacedNode, ...]

    @property
    def elsewhere(self) -> tuple[PlacedNode, ...]:
        """Nodes that another provider than the one asked for was given, or ran where nothing was recorded."""
        nodes = self.executed if self.assigned is None else self.assigned
        return tuple(node for node in nodes if node.provider != self.asked)

    def to_json(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "assigned": None if self.assigned is None else _by_provider(self.assigned),
            "executed": _by_provider(self.executed),
            "elsewhere": [vars(node) for node in self.elsewhere],
        }


def observe_placement(decoder: Decoder, spec: SessionSpec) -> Placement:
    """Loads the decoder's graph as it is, calls it once and reads what the session says of itself.

    Raises ProviderError where the provider is not there, ModelFileError where the graph can't be loaded or called.
    """
    with tempfile.TemporaryDirectory(prefix="qbpass.") as folder:
        session = open_session(
            decoder.path, spec, weights=decoder.weights, profile=Path(folder) / "profile", entries=RECORDING
        )
        assigned = assigned_nodes(session)
        _call(session, decoder)
        profile = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return Placement(PROVIDERS[spec.provider], assigned, _executed(profile))


def _call(session: Any, decoder: Decoder) -> None:
    failure: Exception | None = None
    for call in longer(OBSERVED_CALL):
        try:
            session.run(None, decoder_feeds(decoder, call))
            return
        except Exception as error:  # ONNX Runtime raises a family of private types
            failure = failure or error
    assert failure is not None
    raise ModelFileError(f"{decoder.path} can't be called ({one_line(failure)}): export it again") from failure


def assigned_nodes(session: Any) -> tuple[PlacedNode, ...] | None:
    """Every node of the graph, inner ones too, of a session opened with RECORDING; None where nothing is recorded."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    return tuple(
        PlacedNode(part.ep_name, node.op_type, node.domain, node.name)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )


def _executed(profile: list[Mapping[str, Any]]) -> tuple[PlacedNode, ...]:
    """A profile has several events a node; the kernel's names the provider. Its name is the node's, with a suffix."""
    ending = "_kernel_time"
    events = (event for event in profile if event.get("cat") == "Node" and event["name"].endswith(ending))
    return tuple(
        PlacedNode(event["args"]["provider"], event["args"]["op_name"], "", event["name"].removesuffix(ending))
        for event in events
        if "provider" in event["args"]
    )


def _by_provider(nodes: tuple[PlacedNode, ...]) -> dict[str, Any]:
    """Provider -> how many nodes, and how many of each operator."""
    providers = dict.fromkeys(node.provider for node in nodes)
    return {
        provider: {
            "nodes": sum(node.provider == provider for node in nodes),
            "operators": dict(Counter(n.operator for n in nodes if n.provider == provider).most_common()),
        }
        for provider in providers
    }
