"""What each link of a chain is given is worked out before it runs, and every wrong operand has a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from chain_models import FORMS, exported
from decoder_blocks import SPEC
from fused_graphs import Fused
from onnx import helper

from qbpass.admission.admit import admit
from qbpass.models.decoder import Decoder
from qbpass.models.loading import load_decoder
from qbpass.rewrites.apply import Emission, rewrite_graph
from qbpass.rewrites.chains.audit import audit_chains
from qbpass.rewrites.chains.falsify import ChainFalsifier
from qbpass.rewrites.chains.plan import ChainPlan
from qbpass.rewrites.plan import RewritePlan


def planned(folder: Path, *layers: Fused, phase_mask: int = 2) -> tuple[Decoder, RewritePlan]:
    decoder = load_decoder(exported(folder, *layers))
    chains = tuple(ChainPlan(report.chain) for report in admit(decoder).sites if report.chain is not None)
    return decoder, RewritePlan("pq", phase_mask, 4, (), chains=chains)


def codes(decoder: Decoder, plan: RewritePlan, model: onnx.ModelProto, emission: Emission = "guarded") -> set[str]:
    found = audit_chains(decoder, plan, {emission: model})
    return {problem.code for problems in found.values() for problem in problems}


@pytest.mark.parametrize("emission", ["guarded", "active", "native"])
@pytest.mark.parametrize("form", ["rows apart", "packed, rotary inside", "a bias on the scores"])
def test_a_chain_as_emitted_has_no_problem(form: str, emission: Emission, tmp_path: Path) -> None:
    decoder, plan = planned(tmp_path, FORMS[form])
    assert codes(decoder, plan, rewrite_graph(decoder, plan, emission), emission) == set()


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.name == name)


SITE = "qbpass/attention.0/chain"


def swapped_rows(model: onnx.ModelProto) -> None:
    one, two = (node(model, f"{SITE}/link{number}/operand0") for number in (1, 2))
    one.input[1], one.input[2], two.input[1], two.input[2] = two.input[1], two.input[2], one.input[1], one.input[2]


def anothers_lengths(model: onnx.ModelProto) -> None:
    node(model, f"{SITE}/link2/operator").input[5] = node(model, f"{SITE}/link1/operator").input[5]


def one_key_more(model: onnx.ModelProto) -> None:
    node(model, f"{SITE}/link1/operator").input[6] = node(model, f"{SITE}/link2/operator").input[6]


def no_order(model: onnx.ModelProto) -> None:
    del node(model, f"{SITE}/link2/operand0").input[4]


def anothers_memory(model: onnx.ModelProto) -> None:
    node(model, f"{SITE}/link1/operator").input[3] = "cache.1.key.link1"


def another_attribute(model: onnx.ModelProto) -> None:
    node(model, f"{SITE}/link3/operator").attribute.append(helper.make_attribute("softcap", 3.0))


def rows_out_of_order(model: onnx.ModelProto) -> None:
    joined = node(model, f"{SITE}/every_link")
    joined.input[1], joined.input[2] = joined.input[2], joined.input[1]


def columns_of_the_call(model: onnx.ModelProto) -> None:
    one, two = (node(model, f"{SITE}/link{number}/operand10") for number in (1, 2))
    one.input[2] = two.input[2]


FAULTS: list[tuple[Callable[[onnx.ModelProto], None], str, str]] = [
    (swapped_rows, "rows apart", "LINK_ROWS"),
    (anothers_lengths, "rows apart", "LINK_LENGTHS"),
    (one_key_more, "rows apart", "LINK_LENGTHS"),
    (no_order, "packed, rotary inside", "LINK_ORDER"),
    (anothers_memory, "rows apart", "LINK_OPERANDS"),
    (another_attribute, "rows apart", "LINK_OPERANDS"),
    (rows_out_of_order, "rows apart", "OUTPUT_MAP"),
    (columns_of_the_call, "a bias on the scores", "LINK_ROWS"),
]


@pytest.mark.parametrize(("fault", "form", "code"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_wrong_operand_is_named(
    fault: Callable[[onnx.ModelProto], None], form: str, code: str, tmp_path: Path
) -> None:
    decoder, plan = planned(tmp_path, FORMS[form])
    model = rewrite_graph(decoder, plan)
    fault(model)
    assert code in codes(decoder, plan, model)


def test_a_guard_for_another_phase_is_found(tmp_path: Path) -> None:
    decoder, plan = planned(tmp_path, FORMS["rows apart"], phase_mask=2)
    model = rewrite_graph(decoder, replace(plan, phase_mask=8))
    assert "LINK_ROWS" in codes(decoder, plan, model)


def test_a_falsifier_finds_rows_that_change_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial runs what is emitted: a fault in the emission shows as rows that differ."""
    decoder, plan = planned(tmp_path, FORMS["rows apart"])
    falsifier = ChainFalsifier(decoder, plan.chains[0].site, 4, SPEC, pasts=(0, 3, 6))
    assert falsifier.trial().differing == []

    def faulty(frozen: Decoder, planned: RewritePlan, emission: Emission) -> onnx.ModelProto:
        model = rewrite_graph(frozen, planned, emission)
        swapped_rows(model)
        return model

    monkeypatch.setattr("qbpass.rewrites.chains.falsify.rewrite_graph", faulty)
    differing = falsifier.trial().differing
    assert {(found.queries, found.row) for found in differing} == {(2, 1), (3, 1), (3, 2), (4, 1), (4, 2)}


def test_a_chain_reads_as_text(tmp_path: Path) -> None:
    _, plan = planned(tmp_path, FORMS["packed, rotary inside"])
    assert plan.text().splitlines()[1:] == [
        f"  attention.{layer}: heads 4/2, d 16, com.microsoft::GroupQueryAttention query by query" for layer in (0, 1)
    ]


def test_a_last_layer_whose_output_nothing_reads_has_no_problem(tmp_path: Path) -> None:
    """genai's builder writes Phi-3 so: the head reads the layer before, and the last cache is kept all the same."""
    path = exported(tmp_path, FORMS["rows apart"])
    model = onnx.load(path)
    makers = {node.output[0]: node for node in model.graph.node}
    (head,) = (node for node in model.graph.node if "logits" in node.output)
    attentions = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    head.input[0] = makers[attentions[1].input[0]].input[0]
    onnx.save(model, path)
    decoder = load_decoder(path)
    chains = tuple(ChainPlan(report.chain) for report in admit(decoder).sites if report.chain is not None)
    plan = RewritePlan("pq", 2, 4, (), chains=chains)
    assert len(chains) == 2
    assert codes(decoder, plan, rewrite_graph(decoder, plan)) == set()
