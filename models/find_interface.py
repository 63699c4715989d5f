"""What any decoder's graph takes and gives, found by dataflow: exporters agree on no names."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from qbpass.models.attention_reads import attention_reads
from qbpass.models.branches import BRANCH_KEY, holds_attention
from qbpass.models.cache_layers import find_cache_layers
from qbpass.models.dataflow import FLOATS, INTEGERS, Dataflow
from qbpass.models.findings import Findings
from qbpass.models.fixed_sizes import check_sizes
from qbpass.models.graph_order import subgraphs
from qbpass.models.interface import CrossKV, Interface, StatePair
from qbpass.models.logits import find_logits
from qbpass.models.state_pairs import find_states
from qbpass.models.token_inputs import TokenInputs, counts_logits, find_token_inputs, reaches_attention


def find_interface(model: onnx.ModelProto) -> Interface:
    """The interface of a graph, whatever is missing or unusual named among its problems. Never raises for a graph that
    `read_graph` accepts.
    """
    flow = Dataflow(model.graph)
    findings = Findings(flow)
    _check_branch(model, findings)
    layers = find_cache_layers(flow, findings)
    rest = [name for name in flow.inputs if name not in layers.inputs]
    states = _find_states(flow, rest, layers.outputs)
    if not layers.kv and not states:
        _add_no_cache(flow, findings)
    replaced = {pair.past for pair in states}
    rest = [name for name in rest if name not in replaced]
    floats = [name for name in rest if _is_hidden(flow, name)]
    _check_other_streams(flow, layers.cross, states, findings)
    embeddings = flow.inputs_of(layers.kv[0].present_key or "") if layers.kv and floats else frozenset()
    for name in floats:
        _add_hidden(flow, name, name in embeddings, findings)
    claimed = {*layers.outputs, *(pair.present for pair in states)}
    logits, vocabulary = find_logits(flow, claimed, findings)
    tokens = find_token_inputs(flow, [name for name in rest if not _is_hidden(flow, name)], vocabulary, findings)
    _check_tokens(flow, tokens, findings)
    check_sizes(flow, tokens.ids, layers.growing, findings)
    unplaced = {*floats, *tokens.unknown}
    if flow.exhausted:
        findings.add("SEARCH_LIMIT", "the graph is too tangled to be searched to the end: export the model again")
    return Interface(
        input_ids=tokens.ids,
        attention_mask=tokens.mask,
        position_ids=tokens.positions,
        logits=logits,
        vocab_size=vocabulary,
        kv=layers.kv,
        cross_kv=layers.cross,
        states=states,
        counters=tokens.counters,
        others=tuple(name for name in flow.inputs if name in unplaced),
        problems=findings.problems(),
    )


def _check_branch(model: onnx.ModelProto, findings: Findings) -> None:
    branch = next((entry.value for entry in model.metadata_props if entry.key == BRANCH_KEY), None)
    if branch is not None:
        findings.add(
            "MERGED_DECODER",
            "this is a merged decoder (two decoders behind an If), and what is said of it is said of the branch with a "
            "past: prefill runs the other branch; export it unmerged, with past_key_values inputs",
            branch=branch,
        )


def _find_states(flow: Dataflow, rest: Sequence[str], claimed: frozenset[str]) -> tuple[StatePair, ...]:
    """Hidden states are told from states by their token axis: it has the symbol that the token ids have."""
    tokens = [dim for name in flow.inputs if flow.elem_type(name) in INTEGERS for dim in (flow.shape(name) or [])[1:]]
    symbols = {dim for dim in tokens if isinstance(dim, str)}

    def has_no_token_axis(name: str) -> bool:
        return symbols.isdisjoint(dim for dim in flow.shape(name) or () if isinstance(dim, str))

    inputs = [name for name in rest if _may_be_state(flow, name) and has_no_token_axis(name)]
    return find_states(flow, inputs, [n for n in flow.outputs if n not in claimed and has_no_token_axis(n)])


def _may_be_state(flow: Dataflow, name: str) -> bool:
    return flow.elem_type(name) in FLOATS and len(flow.shape(name) or (1, 2)) >= 2


def _add_no_cache(flow: Dataflow, findings: Findings) -> None:
    bodies = [node.op_type for node in flow.graph.node if any(holds_attention(body) for body in subgraphs(node))]
    has_if = any(node.op_type == "If" for node in flow.graph.node)
    if "If" in bodies or (has_if and len(flow.graph.node) < 100):
        findings.add(
            "MERGED_DECODER",
            "this is a merged decoder (two decoders behind an If): export it unmerged, with past_key_values inputs "
            "(for example task text-generation-with-past)",
        )
    elif bodies:
        findings.add(
            "NESTED_DECODER",
            f"attention is inside the body of a {bodies[0]}: export the model as one flat graph of one call",
        )
    else:
        findings.add("NO_KV_CACHE", "not a decoder with a KV cache: export it with past_key_values inputs")


def _is_hidden(flow: Dataflow, name: str) -> bool:
    """Hidden states, another cache or a ready-made mask: nothing that decoding from token ids feeds."""
    return flow.elem_type(name) in FLOATS and len(flow.shape(name) or ()) in (3, 4)


def _check_other_streams(
    flow: Dataflow, cross: Sequence[CrossKV], states: Sequence[StatePair], findings: Findings
) -> None:
    names = [name for pair in cross for name in (pair.key, pair.value) if name is not None]
    taken = [name for name in names if name in flow.inputs]
    if names:
        findings.add(
            "CROSS_ATTENTION_CACHE",
            f"{(taken or names)[0]!r} holds keys or values of another stream (cross-attention): encoder-decoder models "
            "are not supported",
            *names,
        )
    if states:
        findings.add(
            "RECURRENT_STATE",
            f"input {states[0].past!r} is a state that each call replaces (recurrent, convolution or state space): "
            "rejected tokens could not be taken back; qbpass runs models with attention alone",
            *(pair.past for pair in states),
        )


def _add_hidden(flow: Dataflow, name: str, is_embedding: bool, findings: Findings) -> None:
    rank = len(flow.shape(name) or ())
    if is_embedding and rank == 3:
        findings.add(
            "INPUT_EMBEDDINGS",
            f"input {name!r} (float, rank {rank}) holds embeddings of tokens: export the model with token ids "
            "(input_ids) as input",
            name,
        )
    elif rank == 3 and attention_reads(flow, name, projections=1):
        findings.add(
            "ENCODER_STATES",
            f"input {name!r} (float, rank {rank}) holds another model's hidden states, which attention reads as keys "
            "and values: encoder-decoder models are not supported",
            name,
        )
    elif reaches_attention(flow, name):
        findings.add(
            "ATTENTION_BIAS_INPUT",
            f"input {name!r} (float, rank {rank}) is a ready-made mask or bias of the scores: export the model with an "
            "attention_mask of 0 and 1 a token",
            name,
        )
    else:
        findings.add(
            "UNKNOWN_INPUT",
            f"input {name!r} (float, rank {rank}) is neither token ids, mask, positions nor a cache that is appended "
            "to: encoder-decoder models and models fed with embeddings or 4-D masks are not supported",
            name,
        )


def _check_tokens(flow: Dataflow, tokens: TokenInputs, findings: Findings) -> None:
    for name in tokens.unknown:
        if counts_logits(flow, name):
            findings.add(
                "LOGITS_COUNT_INPUT",
                f"input {name!r} is neither token ids, mask, positions nor KV cache (it looks like a count of logits "
                "to keep): export the model with logits for all positions and without this input",
                name,
            )
        else:
            findings.add(
                "UNKNOWN_INPUT",
                f"input {name!r} is neither token ids, mask, positions nor KV cache: qbpass does not know what to feed "
                "it",
                name,
            )
    for name in tokens.counters:
        findings.add(
            "COUNTER_INPUT",
            f"input {name!r} says how many rows of a cache count, or where new ones go: export the model with an "
            "attention_mask alone",
            name,
        )
    if tokens.positions is not None and len(flow.shape(tokens.positions) or (1, 2)) != 2:
        findings.add(
            "POSITION_RANK",
            f"input {tokens.positions!r} takes positions with {len(flow.shape(tokens.positions) or ())} axes, not "
            "(batch, sequence): export the model with one position a token",
            tokens.positions,
        )
