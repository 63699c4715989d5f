"""A model drafts what it would say next, and what was rejected leaves no trace in its cache."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from decoder_blocks import SPEC, block_target, plan_of, random_tokens, serial_target
from fake_target import FakeTarget, scrambled, serially
from hypothesis import given, settings
from hypothesis import strategies as st

from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.phases import Phase
from qbpass.runtime.choosing import GREEDY
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.micro_batches import MicroBatchTarget
from qbpass.runtime.model_drafter import ModelDrafter
from qbpass.runtime.open_target import open_target

VOCABULARY = 61
RIGHT = scrambled(VOCABULARY)


def proposed(drafter: ModelDrafter, limit: int) -> tuple[int, ...]:
    return drafter.propose(limit, GREEDY.fork).tokens


def fake(wrong_every: int = 0) -> FakeTarget:
    """A model that says what the target says, but behind every `wrong_every` tokens."""

    def next_token(tokens: Sequence[int]) -> int:
        wrong = wrong_every and len(tokens) % wrong_every == 0
        return (RIGHT(tokens) + bool(wrong)) % VOCABULARY

    return FakeTarget(next_token, VOCABULARY)


@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6).map(tuple),
    limit=st.integers(1, 24),
    k=st.integers(0, 5),
    wrong_every=st.sampled_from([0, 1, 2, 3, 5]),
)
@settings(max_examples=80, deadline=None)
def test_any_draft_returns_the_targets_own_tokens_and_keeps_only_what_was_committed(
    prompt: tuple[int, ...], limit: int, k: int, wrong_every: int
) -> None:
    draft = fake(wrong_every)
    endpoint, trace = Engine(FakeTarget(RIGHT, VOCABULARY), ModelDrafter(draft)).generate(Request(prompt, limit, k=k))
    assert endpoint.token_ids == serially(RIGHT, prompt, limit, frozenset())
    # A row of the draft holds a token that was committed there, or one proposed in the last round.
    known = [*prompt, *endpoint.token_ids]
    agreed = next((i for i, (a, b) in enumerate(zip(draft.kv, known, strict=False)) if a != b), len(draft.kv))
    assert len(draft.kv) - agreed <= k
    if wrong_every == 0:
        assert trace.rejected == 0
        assert draft.kv == known[: len(draft.kv)]


def test_known_tokens_are_fed_together_and_proposals_one_by_one() -> None:
    draft = fake()
    drafter = ModelDrafter(draft)
    drafter.start([1, 2, 3], 32)
    drafter.extend([9])
    first = proposed(drafter, 3)
    assert draft.fed == [(3, 9), (4, first[0]), (5, first[1])]
    draft.fed.clear()
    drafter.extend([*first, 7])  # all accepted, and one more
    second = proposed(drafter, 2)
    assert draft.fed == [(6, first[2]), (7, 7), (8, second[0])]


def test_the_cache_goes_back_to_where_it_and_the_committed_tokens_part() -> None:
    draft = fake()
    drafter = ModelDrafter(draft)
    drafter.start([1, 2, 3], 32)
    drafter.extend([9])
    proposal = proposed(drafter, 3)
    correction = (proposal[1] + 1) % VOCABULARY
    drafter.extend([proposal[0], correction])
    proposed(drafter, 1)
    assert draft.kv == [1, 2, 3, 9, proposal[0], correction]


def test_it_proposes_no_further_than_its_cache_has_room() -> None:
    drafter = ModelDrafter(fake())
    drafter.start([1, 2, 3], 5)
    drafter.extend([9])
    assert len(proposed(drafter, 4)) == 2
    drafter.extend([4, 5])
    assert proposed(drafter, 4) == ()
    assert proposed(drafter, 0) == ()


def test_a_new_request_forgets_the_last() -> None:
    drafter = ModelDrafter(fake())
    proposals = []
    for _ in range(2):
        drafter.start([1, 2, 3], 32)
        drafter.extend([9])
        proposals.append(proposed(drafter, 3))
        drafter.extend([5, 6, 7])
        proposed(drafter, 3)
    assert proposals[0] == proposals[1]


class Failing(FakeTarget):
    """Fails in its `at`-th verification."""

    at = 0

    def verify(self, tokens: Sequence[int]) -> object:  # type: ignore[override]
        self.at -= 1
        if self.at == 0:
            raise RuntimeError("no memory")
        return super().verify(tokens)


def test_a_draft_that_fails_in_a_round_proposes_the_same_when_asked_again() -> None:
    proposals = []
    for fails_at in (0, 1, 2, 3):
        draft = Failing(RIGHT, VOCABULARY)
        drafter = ModelDrafter(draft)
        drafter.start([1, 2, 3], 32)
        drafter.extend([9])
        draft.at = fails_at
        if fails_at:
            with pytest.raises(RuntimeError, match="no memory"):
                proposed(drafter, 3)
        proposals.append(proposed(drafter, 3))
    assert proposals == [proposals[0]] * 4


def test_the_bundles_own_model_drafts_in_its_own_role_and_is_always_right(tiny_bundle: Bundle) -> None:
    target = block_target(tiny_bundle, plan_of(tiny_bundle, phase_mask=10))
    drafter = ModelDrafter.sharing(target, tiny_bundle.manifest, SPEC)
    assert drafter.target.session is target.session  # type: ignore[attr-defined]
    seen: set[int] = set()
    draft = drafter.target
    call = draft._call  # type: ignore[attr-defined]
    draft._call = lambda *rest: (seen.add(draft.guard.value), call(*rest))  # type: ignore[attr-defined]
    request = Request(random_tokens(tiny_bundle, 9, 3), max_new_tokens=20)
    wanted, _ = Engine(serial_target(tiny_bundle)).generate(request)
    got, trace = Engine(target, drafter).generate(request)
    assert got == wanted
    assert trace.proposed == trace.accepted > 10
    assert seen == {Phase.DRAFT_PREFILL, Phase.DRAFT_CONTINUATION}


def test_with_the_layout_in_its_phases_a_draft_is_serial_evaluation_byte_for_byte(tiny_bundle: Bundle) -> None:
    """And without it, it is not: the bits are earned."""
    request = Request(random_tokens(tiny_bundle, 21, 3), max_new_tokens=20)
    serial = serial_target(tiny_bundle, "one")
    found = {}
    for mask in (None, 15, 3):
        if mask is None:
            target, draft = (MicroBatchTarget.over(serial, SPEC, 4) for _ in range(2))
        else:
            target = block_target(tiny_bundle, plan_of(tiny_bundle, phase_mask=mask), prefill_rows=4)  # type: ignore[assignment]
            draft = target.draft(SPEC, 4)  # type: ignore[attr-defined]
        endpoint, _ = Engine(target, ModelDrafter(draft)).generate(request)
        found[mask] = (endpoint, [draft.cached(index).tobytes() for index in range(6)])
    assert found[15] == found[None]
    assert found[3][0] == found[None][0]
    assert found[3][1] != found[None][1]


@pytest.mark.parametrize(("prefill", "rows"), [("whole", None), ("chunks:12", 12), ("one", 4)])
def test_a_draft_reads_its_prompt_by_the_recipe_in_micro_batches_where_that_is_one_by_one(
    tiny_bundle: Bundle, prefill: str, rows: int | None
) -> None:
    recipe = tiny_bundle.manifest.recipe.model_copy(update={"prefill": prefill})
    manifest = tiny_bundle.manifest.model_copy(update={"recipe": recipe})
    drafter = ModelDrafter.sharing(open_target(tiny_bundle, SPEC), manifest, SPEC)
    assert drafter.target._prefill_rows == rows  # type: ignore[attr-defined]
