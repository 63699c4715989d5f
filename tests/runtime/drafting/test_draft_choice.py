"""The form of a self draft is the one that gives most tokens a second by what was measured, and is remembered."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest
from decoder_blocks import SPEC, random_tokens, serial_target
from hypothesis import given
from hypothesis import strategies as st

from qbpass.models.cache import cache_folder
from qbpass.models.session import open_session
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.self_draft import store
from qbpass.rewrites.self_draft.graph import one_row_graph
from qbpass.rewrites.self_draft.quantize import QuantForm
from qbpass.rewrites.self_draft.store import draft_facts, drafts_folder, stored_draft
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.drafting.drafts import Drafts
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.open_target import open_target
from qbpass.runtime.self_draft import open as opening
from qbpass.runtime.self_draft.calibrate import continuations, survival
from qbpass.runtime.self_draft.choice import best_round, choose_form, remember, remembered_choice
from qbpass.runtime.self_draft.drafter import SelfDrafter
from qbpass.runtime.self_draft.open import drafter_of, open_self_draft

INT8, INT4 = QuantForm(8, 8), QuantForm(4, 4)
CALLS = (1.0, 1.1, 1.2, 1.3)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QBPASS_CACHE", str(tmp_path / "cache"))


@given(
    step=st.floats(0.01, 2.0),
    survival=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3).map(lambda each: sorted(each, reverse=True)),
)
def test_the_best_round_is_never_worse_than_none_and_than_any_other(step: float, survival: list[float]) -> None:
    proposals, ratio = best_round(step, survival, CALLS)
    tokens = accumulate(survival, initial=1.0)
    rates = [made / (k * step + CALLS[k]) for k, made in enumerate(tokens)]
    assert ratio == max(1.0, *rates)
    assert proposals == (rates.index(ratio) if ratio > 1 else 0)


def test_the_cheaper_form_wins_where_both_are_right_and_the_right_one_where_the_cheap_one_errs() -> None:
    steps = {INT8: 0.3, INT4: 0.2}
    always = choose_form([INT8, INT4], CALLS, steps.__getitem__, lambda form: [1.0, 1.0, 1.0])
    assert always.chosen.form() == INT4
    assert always.proposals == 3
    right = {INT8: [1.0, 1.0, 1.0], INT4: [0.5, 0.2, 0.1]}
    assert choose_form([INT8, INT4], CALLS, steps.__getitem__, right.__getitem__).chosen.form() == INT8


def test_a_form_that_could_not_win_if_it_were_always_right_is_not_asked() -> None:
    asked = []

    def right(form: QuantForm) -> Sequence[float]:
        asked.append(form)
        return [1.0, 1.0, 1.0]

    choice = choose_form([INT8, INT4], CALLS, {INT8: 0.9, INT4: 0.1}.__getitem__, right)
    assert asked == [INT4]
    assert [entry.survival for entry in choice.candidates] == [(), (1.0, 1.0, 1.0)]
    assert "too much, however right" in choice.lines()[1]


def test_a_decision_is_read_back_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    choice = choose_form([INT8], CALLS, lambda form: 0.3, lambda form: [0.9, 0.8, 0.7])
    path = tmp_path / "choices" / "draft.json"
    assert remembered_choice(path) is None
    remember(path, choice)
    read = remembered_choice(path)
    assert read is not None
    assert read.remembered
    assert read.model_copy(update={"remembered": False}) == choice
    path.write_text(path.read_text()[:-20])
    assert remembered_choice(path) is None


def block(bundle: Bundle) -> BlockTarget:
    target = open_target(bundle, SPEC)
    assert isinstance(target, BlockTarget)
    return target


def test_how_far_a_draft_is_right_is_what_the_engine_then_sees(tiny_sdpa_bundle: Bundle) -> None:
    """The measurement asks backwards, over rows that the target wrote: a proposal is the one of a real round."""
    target = block(tiny_sdpa_bundle)
    drafter = drafter_of(tiny_sdpa_bundle, target, INT4, stored_draft(tiny_sdpa_bundle, INT4), SPEC)
    said = continuations(tiny_sdpa_bundle, target)
    assert len(said) == 4
    measured = survival(drafter, said, 3)
    assert 0 < measured[0] <= 1
    assert sorted(measured, reverse=True) == measured
    seen = []
    for each in said:
        serial = serial_target(tiny_sdpa_bundle)
        endpoint, trace = Engine(target, drafter).generate(Request(each.prompt, len(each.tokens), k=3))
        assert endpoint == Engine(serial).generate(Request(each.prompt, len(each.tokens)))[0]
        seen.append(trace.acceptance)
    assert min(seen) - 0.35 < sum(measured) / 3 < max(seen) + 0.35  # other positions of the same text


def test_a_draft_of_the_target_s_own_bits_is_found_to_be_always_right(tiny_sdpa_bundle: Bundle) -> None:
    target = block(tiny_sdpa_bundle)
    graph = one_row_graph(tiny_sdpa_bundle.reference, frozenset()).SerializeToString()
    exact = SelfDrafter(open_session(graph, SPEC, weights=tiny_sdpa_bundle.weights), target)
    assert survival(exact, continuations(tiny_sdpa_bundle, target), 3) == [1.0, 1.0, 1.0]


def test_what_was_decided_is_used_again_unless_it_is_to_be_decided_anew(
    tiny_sdpa_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = block(tiny_sdpa_bundle)
    first = open_self_draft(tiny_sdpa_bundle, target, SPEC)
    assert not first.choice.remembered
    assert [path.name for path in drafts_folder().iterdir()] == [first.folder.name]  # the others are not kept
    monkeypatch.setattr(opening, "_measured", lambda *rest: pytest.fail("measured again"))
    again = open_self_draft(tiny_sdpa_bundle, target, SPEC)
    assert again.choice.remembered
    assert again.choice.chosen == first.choice.chosen
    monkeypatch.setattr(opening, "_measured", lambda *rest: first.choice)
    assert not open_self_draft(tiny_sdpa_bundle, target, SPEC, fresh=True).choice.remembered


def test_a_draft_that_was_cut_short_or_changed_is_made_again(tiny_sdpa_bundle: Bundle) -> None:
    folder = stored_draft(tiny_sdpa_bundle, INT8)
    facts, whole = draft_facts(folder), {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in whole:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-7])
        assert stored_draft(tiny_sdpa_bundle, INT8) == folder
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
        assert draft_facts(folder) == facts


def test_a_run_that_dies_while_it_writes_leaves_nothing_half_done(
    tiny_sdpa_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stored_draft(tiny_sdpa_bundle, INT8)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(store, "quantize_products", lambda *rest: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            stored_draft(tiny_sdpa_bundle, INT8, fresh=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in drafts_folder().iterdir()] == [folder.name]


def test_kept_drafts_are_bounded_and_the_last_used_stay(
    tiny_sdpa_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, used = (stored_draft(tiny_sdpa_bundle, form) for form in (INT8, INT4))
    for age, folder in ((100, used), (200, old)):
        os.utime(folder, (folder.stat().st_mtime - age,) * 2)
    size = sum(path.stat().st_size for path in used.iterdir())
    monkeypatch.setattr(store, "MOST_BYTES", 3 * size)
    third = stored_draft(tiny_sdpa_bundle, QuantForm(4, 8))
    assert {path.name for path in drafts_folder().iterdir()} == {used.name, third.name}


def test_targets_of_one_run_share_the_drafts_session_and_it_is_named(tiny_sdpa_bundle: Bundle) -> None:
    target = block(tiny_sdpa_bundle)
    drafts = Drafts("self", tiny_sdpa_bundle, SPEC)
    assert drafts.model is None
    one, two = (drafts.drafter(each) for each in (target, target.sibling(SPEC)))
    assert one.session is two.session  # type: ignore[attr-defined]
    request = Request(random_tokens(tiny_sdpa_bundle, 9, 3), max_new_tokens=12)
    assert Engine(two.target, two).generate(request)[0] == Engine(target, one).generate(request)[0]  # type: ignore[attr-defined]
    assert drafts.model is not None
    assert (drafts.model.source, drafts.model.threads) == ("self", 2)
    assert drafts.model.form == drafts.lines[0].partition(": ")[2].partition(", block")[0]
    assert cache_folder() in drafts_folder().parents
