"""The phase flag follows role and stage, and every exit gives back what was there before."""

from __future__ import annotations

import pytest

from qbpass.rewrites.phases import Phase, guard_table
from qbpass.runtime.phase_guard import NATIVE_ONLY, PhaseGuard, Role, Stage


@pytest.mark.parametrize(
    ("role", "stage", "phase"),
    [
        (Role.TARGET, Stage.PREFILL, Phase.TARGET_PREFILL),
        (Role.TARGET, Stage.CONTINUATION, Phase.TARGET_CONTINUATION),
        (Role.DRAFT, Stage.PREFILL, Phase.DRAFT_PREFILL),
        (Role.DRAFT, Stage.CONTINUATION, Phase.DRAFT_CONTINUATION),
    ],
)
def test_role_and_stage_name_the_phase(role: Role, stage: Stage, phase: Phase) -> None:
    guard = PhaseGuard(role)
    with guard.at(stage):
        assert guard.value == phase


def test_the_stage_comes_back_when_a_call_ends_and_when_it_fails() -> None:
    guard = PhaseGuard()
    with guard.at(Stage.CONTINUATION):
        assert guard.stage is Stage.CONTINUATION
    assert guard.stage is Stage.PREFILL
    with pytest.raises(RuntimeError, match="call failed"), guard.at(Stage.CONTINUATION):
        raise RuntimeError("call failed")
    assert guard.stage is Stage.PREFILL


def test_a_failure_inside_an_inner_call_restores_the_outer_stage() -> None:
    guard = PhaseGuard()
    with guard.at(Stage.CONTINUATION):
        with pytest.raises(KeyboardInterrupt), guard.at(Stage.PREFILL):
            raise KeyboardInterrupt
        assert guard.stage is Stage.CONTINUATION
    assert guard.stage is Stage.PREFILL


def test_a_new_request_starts_in_prefill() -> None:
    guard = PhaseGuard()
    with guard.at(Stage.CONTINUATION):
        guard.new_request()
        assert guard.value == Phase.TARGET_PREFILL


@pytest.mark.parametrize(("name", "value"), [("role", Role.DRAFT), ("native_only", True), ("stage", Stage.PREFILL)])
def test_neither_role_nor_layout_of_a_guard_can_be_changed(name: str, value: object) -> None:
    with pytest.raises(AttributeError):
        setattr(PhaseGuard(), name, value)


@pytest.mark.parametrize("role", list(Role))
def test_native_only_selects_the_exported_layout_under_every_mask(role: Role) -> None:
    guard = PhaseGuard(role, native_only=True)
    for stage in Stage:
        with guard.at(stage):
            assert guard.value == NATIVE_ONLY
    assert not any(guard_table(mask)[NATIVE_ONLY] for mask in range(16))
