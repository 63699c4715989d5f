"""Row repair of SmolLM2-135M-Instruct in four bits: every row of logits is the serial one."""

from __future__ import annotations

from pathlib import Path

import pytest
from decoder_blocks import SPEC, replayed
from quantized_exports import weight_only, written

from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.runtime.block_target import BlockTarget


@pytest.mark.real_model
@pytest.mark.slow
@pytest.mark.parametrize(("block", "level"), [(128, 4), (32, 0)])
def test_a_four_bit_model_replays_serial_decoding(smollm2_sdpa: Path, tmp_path: Path, block: int, level: int) -> None:
    """torch leaves a Transpose in front of each weight; quantizers see constants once ONNX Runtime has folded it."""
    (tmp_path / "frozen").mkdir()
    frozen = freeze(load_decoder(smollm2_sdpa), tmp_path / "frozen", SPEC, copy_weights=True)
    model = weight_only(smollm2_sdpa, tmp_path / "model", 4, block, level, graph=frozen.path)
    bundle, plan = written(model, tmp_path / "bundle")
    products = [label for label in plan.repair_evidence if label.startswith("MatMulNBits")]
    assert sum(plan.repair_evidence[label]["nodes"] for label in products) == 7 * 30 + 1
    count = replayed(bundle, BlockTarget.from_bundle(bundle, SPEC))
    assert count.equal == count.rows == 13 * (1 + 2 + 3 + 4)
