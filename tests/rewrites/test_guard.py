"""The graph's own phase input decides which layout runs, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from decoder_blocks import block_target, plan_of, random_tokens

from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.phases import ALL_PHASES, Phase, guard_table, layout_active
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.call_error import CallError
from qbpass.runtime.phase_guard import PhaseGuard, Stage

PHASES = tuple(int(phase) for phase in Phase)


@pytest.mark.parametrize("mask", range(16))
def test_a_layout_is_active_in_the_phases_of_its_mask_and_in_no_sum_of_phases(mask: int) -> None:
    table = guard_table(mask)
    assert len(table) == ALL_PHASES + 1
    for value, active in enumerate(table):
        assert active == (value in PHASES and value & mask != 0)
    for phase in Phase:
        assert table[phase] == layout_active(phase, mask)


class FixedPhase(PhaseGuard):
    """A caller that sets the phase input to `fixed` whatever it is doing."""

    fixed = 0

    @property
    def value(self) -> int:
        return self.fixed


@pytest.fixture(scope="module")
def logits_in_phase(tiny_bundle: Bundle) -> Callable[[BlockTarget, int], bytes]:
    prompt, tokens = random_tokens(tiny_bundle, 6, 4), random_tokens(tiny_bundle, 4, 5)

    def run(target: BlockTarget, phase: int) -> bytes:
        guard = FixedPhase()
        target.guard = guard
        target.start(len(prompt) + len(tokens))
        target.prefill(prompt)
        guard.fixed = phase
        result = target.verify(tokens).tobytes()
        return result

    return run


@pytest.mark.parametrize("mask", [0, 2, 3, 15])
def test_each_phase_value_runs_the_layout_its_mask_says(
    tiny_bundle: Bundle, logits_in_phase: Callable[[BlockTarget, int], bytes], mask: int
) -> None:
    always, never = (logits_in_phase(block_target(tiny_bundle, plan_of(tiny_bundle, phase_mask=m)), 2) for m in (15, 0))
    assert always != never  # or the bits could not tell which layout ran
    target = block_target(tiny_bundle, plan_of(tiny_bundle, phase_mask=mask))
    for phase, active in enumerate(guard_table(mask)):
        assert logits_in_phase(target, phase) == (always if active else never), f"phase {phase}"


def test_a_phase_outside_the_table_is_an_error_and_not_a_layout(tiny_bundle: Bundle) -> None:
    target = block_target(tiny_bundle, plan_of(tiny_bundle))
    guard = FixedPhase()
    guard.fixed = 16
    target.guard = guard
    target.start(8)
    with pytest.raises(CallError, match="ONNX Runtime failed in a call") as raised:
        target.prefill([1, 2, 3])
    assert "\n" not in str(raised.value)


def test_prefill_runs_native_and_continuation_the_layout_under_the_usual_mask(tiny_bundle: Bundle) -> None:
    prompt, tokens = random_tokens(tiny_bundle, 6, 4), random_tokens(tiny_bundle, 4, 5)
    usual = block_target(tiny_bundle, plan_of(tiny_bundle, phase_mask=Phase.TARGET_CONTINUATION))
    native = block_target(tiny_bundle, plan_of(tiny_bundle, phase_mask=0))
    rows: list[np.ndarray] = []
    for target in (usual, native):
        target.start(len(prompt) + len(tokens))
        rows += [target.prefill(prompt), target.verify(tokens).copy()]
    assert rows[0].tobytes() == rows[2].tobytes()
    assert rows[1].tobytes() != rows[3].tobytes()
    assert usual.guard.stage is Stage.PREFILL
