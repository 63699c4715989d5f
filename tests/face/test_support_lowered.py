"""`qbpass support` asks about what a lowered attention is rewritten to, beside the fused operator itself."""

from __future__ import annotations

import json
from pathlib import Path

from chain_models import exported
from lowered_models import FORMS

from qbpass.cli import run


def test_a_lowered_attention_is_asked_about_as_it_is_rewritten(tmp_path: Path) -> None:
    model = exported(tmp_path, FORMS["mha, its own order"])
    report = tmp_path / "support.json"
    assert run(["support", str(model), "--backend", "ort-cuda", "--json", str(report)]) in (0, 1)
    asked = {answer["operator"] for answer in json.loads(report.read_text())["answers"]}
    assert {"com.microsoft::MultiHeadAttention", "com.microsoft::FusedMatMul"} <= asked
