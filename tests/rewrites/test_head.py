"""Logits of the rows that are asked for: the bytes of the exported head, and only where no row falsified it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from decoder_blocks import SPEC, random_tokens, serial_target
from quantized_exports import weight_only, written

from qbpass.models.decoder import Decoder
from qbpass.models.session import open_session
from qbpass.rewrites import head as head_module
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.head import LOGITS_FROM, falsify_head, find_head
from qbpass.runtime.block_target import BlockTarget


def test_the_tiny_bundles_head_was_tried_and_its_evidence_kept(tiny_bundle: Bundle) -> None:
    assert tiny_bundle.manifest.head_evidence["verdict"] == (
        "unknown" if tiny_bundle.manifest.head == "asked" else "false"
    )


@pytest.mark.parametrize("length", [1, 2, 7, 64, 129, 300])
def test_a_prompts_last_row_of_logits_is_the_references(tiny_bundle: Bundle, length: int) -> None:
    target, reference = BlockTarget.from_bundle(tiny_bundle, SPEC), serial_target(tiny_bundle)
    prompt = random_tokens(tiny_bundle, length)
    rows = []
    for each in (target, reference):
        each.start(length + 4)
        rows.append(each.prefill(prompt))
    assert rows[0].shape == (1, tiny_bundle.manifest.interface.vocab_size)
    assert rows[0].tobytes() == rows[1].tobytes()


def test_a_quantized_heads_last_row_is_the_references(tiny_eager: Path, tmp_path: Path) -> None:
    """Where its rows could be falsified it computes all of them, and the row is the reference's all the same."""
    bundle, plan = written(weight_only(tiny_eager, tmp_path / "model", 4, 32, 4), tmp_path / "bundle")
    found = find_head(bundle.reference)
    assert found is not None
    assert found.op_type == "MatMulNBits"
    assert plan.head == ("all" if plan.head_evidence["verdict"] == "false" or plan.repairs else "asked")
    target, reference = BlockTarget.from_bundle(bundle, SPEC), serial_target(bundle)
    for length in (2, 7, 64):
        rows = []
        for each in (target, reference):
            each.start(length + 4)
            rows.append(each.prefill(random_tokens(bundle, length)).tobytes())
        assert rows[0] == rows[1]


def test_the_rewritten_graph_computes_no_other_row_of_a_prompt(tiny_bundle: Bundle) -> None:
    if tiny_bundle.manifest.head == "all":
        pytest.skip("one row alone is not the row among many on this machine")
    model = onnx.load_from_string(tiny_bundle.graph())
    makers = {output: node for node in model.graph.node for output in node.output}
    rows = makers[makers[tiny_bundle.manifest.interface.logits].input[0]]
    assert rows.op_type == "Slice"
    assert rows.input[1] == LOGITS_FROM


class CoupledRows:
    """A session whose last row changes by one bit once more than 16 rows are computed together."""

    def __init__(self, session: Any):
        self.session = session

    def get_inputs(self) -> Any:
        return self.session.get_inputs()

    def run(self, names: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        logits = self.session.run(names, feeds)[0]
        if feeds["hidden"].shape[1] > 16:
            logits[0, -1].view(np.uint32)[0] ^= 1
        return [logits]


def test_a_head_whose_rows_depend_on_how_many_there_are_is_left_as_exported(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        head_module, "open_session", lambda *args, **options: CoupledRows(open_session(*args, **options))
    )
    evidence = falsify_head(tiny_bundle.reference, SPEC)
    assert evidence["form"] == "all"
    assert evidence["verdict"] == "false"
    assert evidence["witness"]["rows"] == 17


def test_a_head_that_is_no_product_with_constant_weights_is_left_as_exported(tiny_bundle: Bundle) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(tiny_bundle.reference.model)
    next(node for node in model.graph.node if "logits" in node.output).op_type = "Identity"
    other = Decoder(Path("reference.onnx"), model, tiny_bundle.reference.interface)
    assert find_head(tiny_bundle.reference) is not None
    assert find_head(other) is None
    assert falsify_head(other, SPEC)["form"] == "all"
