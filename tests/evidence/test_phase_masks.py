"""Under a one-by-one reference the target needs both of its phases, and the draft both of its own: no bit is spare."""

from __future__ import annotations

from pathlib import Path

import pytest
from decoder_blocks import SPEC, plan_of, random_tokens

from qbpass.evidence import phase_masks as module
from qbpass.evidence.phase_masks import MaskResult, minimal, phase_masks
from qbpass.evidence.prompts import Prompt
from qbpass.models.errors import BundleError
from qbpass.models.loading import load_decoder
from qbpass.rewrites import guard as guard_module
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.plan import Layout
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.phase_guard import PhaseGuard, Role


@pytest.fixture(scope="module")
def bundle(tiny_eager: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundles") / "one"
    return write_bundle(load_decoder(tiny_eager), folder, "qb", SPEC, prefill="one")[0]


def prompts(bundle: Bundle) -> list[Prompt]:
    return [Prompt(str(seed), "random", random_tokens(bundle, length, seed)) for length, seed in ((21, 1), (10, 2))]


def results(bundle: Bundle, layout: Layout = "qb", masks: tuple[int, ...] = tuple(range(16))) -> list[MaskResult]:
    plan = plan_of(bundle, layout)
    return phase_masks(bundle, plan, prompts(bundle), SPEC, masks=masks, max_new_tokens=12, replay_rows=6)


@pytest.mark.parametrize("layout", ["qb", "pq"])
def test_exactly_these_of_the_sixteen_masks_pass(bundle: Bundle, layout: Layout) -> None:
    found = results(bundle, layout)
    assert [result.mask for result in found] == list(range(16))
    target = {result.mask for result in found if result.target_passes}
    both = {result.mask for result in found if result.passes}
    draft = {result.mask for result in found if result.draft_kv == result.prompts}
    assert target == {3, 7, 11, 15}
    assert draft == {12, 13, 14, 15}
    assert both == {15}
    assert (minimal(target), minimal(draft), minimal(both)) == ([3], [12], [15])


def test_a_mask_fails_in_what_its_missing_phase_computes(bundle: Bundle) -> None:
    without_prefill, without_continuation = results(bundle, masks=(14, 13))
    assert without_prefill.kv == without_continuation.kv == 0
    assert without_prefill.rows_equal == 0  # behind another prompt's keys no row is serial
    assert 0 < without_continuation.rows_equal < without_continuation.rows  # blocks of one row are
    assert without_prefill.draft_kv == without_continuation.draft_kv == 2


@pytest.mark.parametrize("answer", [True, False])
def test_a_guard_that_ignores_the_mask_gives_every_mask_one_verdict(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    """What the table above would look like if the bits were not read."""
    monkeypatch.setattr(guard_module, "guard_table", lambda mask: [answer] * 16)
    found = {result.mask: result.target_passes for result in results(bundle, masks=(0, 3, 12, 15))}
    assert set(found.values()) == {answer}


def test_a_draft_in_the_targets_role_is_found_out(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A role that is not passed on: the draft's bits would decide nothing, and the target's would decide for both."""
    draft = BlockTarget.draft

    def as_target(self: BlockTarget, spec: object, rows: int | None) -> BlockTarget:
        made = draft(self, spec, rows)  # type: ignore[arg-type]
        made.guard = PhaseGuard(Role.TARGET)
        return made

    monkeypatch.setattr(BlockTarget, "draft", as_target)
    found = {result.mask: (result.target_passes, result.passes) for result in results(bundle, masks=(3, 12, 15))}
    assert found == {3: (True, True), 12: (False, False), 15: (True, True)}


def test_a_stage_that_is_not_restored_is_found_out(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the flag stayed at continuation, a request's prompt would run in the wrong phase: mask 2 would look right."""
    right = results(bundle, masks=(2,))[0]
    assert not right.target_passes
    monkeypatch.setattr(PhaseGuard, "new_request", lambda self: None)
    monkeypatch.setattr(PhaseGuard, "at", _never_left)
    assert results(bundle, masks=(2,))[0] != right


def _never_left(self: PhaseGuard, stage: object) -> object:
    from contextlib import nullcontext

    from qbpass.runtime.phase_guard import Stage

    self._stage = Stage.CONTINUATION
    return nullcontext()


def test_a_prompt_fed_one_row_a_call_is_right_under_every_mask(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is why the experiment must feed micro-batches: else bit 1 would look spare."""
    make = module.block_target_of
    monkeypatch.setattr(module, "block_target_of", lambda bundle, plan, spec, rows: make(bundle, plan, spec, 1))
    assert results(bundle, masks=(2,))[0].target_passes


@pytest.mark.parametrize(
    ("masks", "smallest"),
    [([], []), ([15], [15]), ([3, 7, 11, 15], [3]), ([3, 12, 15], [3, 12]), ([0, 1], [0]), ([5, 6, 7], [5, 6])],
)
def test_a_minimal_mask_contains_no_other_that_passes(masks: list[int], smallest: list[int]) -> None:
    assert minimal(masks) == smallest


def test_a_reference_that_reads_several_rows_a_call_is_refused(tiny_bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="rewrite with --prefill one"):
        phase_masks(tiny_bundle, plan_of(tiny_bundle), prompts(tiny_bundle), SPEC)
