"""Attentions in forms that other exporters write are rewritten, and every row equals serial decoding's."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from decoder_blocks import SPEC, block_target, plan_of, replayed
from site_graphs import Knobs, make_decoder

from qbpass.models.loading import load_decoder
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.plan import Layout

FORMS = {
    "scale folded into the keys": Knobs(layers=2, repeat="scaled", product="matmul"),
    "guard against NaN": Knobs(layers=2, product="matmul", weights="nan_guard"),
    "one KV head, left to broadcasting": Knobs(heads=4, kv_heads=1, repeat="none", product="matmul"),
    "one KV head a query head": Knobs(heads=3, kv_heads=3, repeat="none"),
    "mask cut to the extent of the repeated keys": Knobs(layers=2, slice_by_keys=True, product="matmul"),
    "a batch left open": Knobs(batch="batch", product="matmul"),
    "joined with rows in front of heads": Knobs(layers=2, join="turned", product="matmul"),
    "float16": Knobs(layers=2, dtype="float16"),
    "float16, a guard against NaN": Knobs(layers=2, dtype="float16", product="matmul", weights="nan_guard"),
    "float16, scale folded into the keys": Knobs(layers=2, dtype="float16", repeat="scaled", product="matmul"),
    "a softmax spelled out": Knobs(layers=2, softmax="definition"),
    "unscaled products": Knobs(layers=2, product="unscaled"),  # OPT's: keys turned by the product, which scales nothing
}


PQ = (
    "scale folded into the keys",
    "float16",
    "float16, a guard against NaN",
    "a softmax spelled out",
    "unscaled products",
)
CASES: list[tuple[str, Layout]] = [*((form, "qb") for form in FORMS), *((form, "pq") for form in PQ)]


@pytest.mark.parametrize(("form", "layout"), CASES)
def test_every_row_of_a_foreign_form_is_the_serial_one(form: str, layout: Layout, tmp_path: Path) -> None:
    onnx.save(make_decoder(FORMS[form]).model, tmp_path / "model.onnx")
    bundle, plan, _report = write_bundle(load_decoder(tmp_path / "model.onnx"), tmp_path / "bundle", layout, SPEC)
    assert plan.layout == layout
    count = replayed(bundle, block_target(bundle, plan_of(bundle, layout)))
    assert count.equal == count.rows == 13 * (1 + 2 + 3 + 4)
