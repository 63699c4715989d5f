"""What probes look at of a bundle whose attentions are chains."""

from __future__ import annotations

from pathlib import Path

from chain_models import FORMS, chained
from decoder_blocks import SPEC

from qbpass.admission.calls.call import Call
from qbpass.evidence.active_graph import active_graph
from qbpass.models.session import open_session


def test_a_chains_active_graph_takes_the_calls_it_is_given(tmp_path: Path) -> None:
    bundle = chained(tmp_path, FORMS["packed, rotary inside"])
    graph = active_graph(bundle)
    session = open_session(graph.model.SerializeToString(), SPEC, weights=bundle.weights)
    for call in (Call(1, 3), Call(3, 4), Call(4, 1)):
        logits = session.run([bundle.manifest.interface.logits], dict(graph.feeds(call)))[0]
        assert logits.shape == (1, call.queries, bundle.manifest.interface.vocab_size)
