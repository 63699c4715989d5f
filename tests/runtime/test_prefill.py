"""A prompt is read in the calls its recipe names: other calls are another reference, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from decoder_blocks import SPEC, block_target, plan_of, random_tokens, replayed

from qbpass.models.session import open_session
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.phase_guard import Stage
from qbpass.runtime.prefill import calls, prompt_rows, recipe_rows
from qbpass.runtime.serial_target import SerialTarget

RECIPES = ("whole", "chunks:12", "one")
ROWS = 37  # three calls of 12 rows and one of a single row, whose bits no call of several rows has


@pytest.mark.parametrize(
    ("prefill", "active", "rows"),
    [
        ("whole", False, None),
        ("whole", True, None),
        ("chunks:16", False, 16),
        ("chunks:16", True, 16),
        ("chunks:3", True, 3),
        ("one", False, 1),
        ("one", True, 4),
    ],
)
def test_only_a_reference_that_reads_one_row_a_call_leaves_room_for_a_layout(
    prefill: str, active: bool, rows: int | None
) -> None:
    assert prompt_rows(prefill, active=active, max_queries=4) == rows
    assert prompt_rows(prefill, active=False, max_queries=4) == recipe_rows(prefill)


@pytest.mark.parametrize(("rows", "sizes"), [(None, [10]), (4, [4, 4, 2]), (5, [5, 5]), (1, [1] * 10), (11, [10])])
def test_calls_hold_every_token_once_and_in_order(rows: int | None, sizes: list[int]) -> None:
    cut = calls(range(10), rows)
    assert [len(call) for call in cut] == sizes
    assert [token for call in cut for token in call] == list(range(10))


def serial(bundle: Bundle, prefill: str) -> SerialTarget:
    return SerialTarget.from_frozen(bundle.reference, SPEC, prefill=prefill)


def prompt_bytes(target: BlockTarget | SerialTarget, bundle: Bundle, prompt: Sequence[int]) -> list[bytes]:
    """The last row of logits, then every KV tensor, behind the prompt."""
    target.start(len(prompt) + 1)
    logits = target.prefill(prompt).tobytes()
    return [logits, *(target.cached(index).tobytes() for index in range(2 * len(bundle.reference.contract.kv)))]


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def bundle(request: pytest.FixtureRequest, tiny_bundle: Bundle, tiny_sdpa_bundle: Bundle) -> Bundle:
    return tiny_bundle if request.param == "eager" else tiny_sdpa_bundle


def test_the_reference_by_another_partition_has_other_bytes(bundle: Bundle) -> None:
    """Or no test of a partition could fail."""
    prompt = random_tokens(bundle, ROWS, 3)
    assert len({prompt_bytes(serial(bundle, prefill), bundle, prompt)[-1] for prefill in RECIPES}) == len(RECIPES)


@pytest.mark.parametrize("prefill", RECIPES)
def test_the_reference_reads_its_prompt_as_the_frozen_graph_does_in_such_calls(bundle: Bundle, prefill: str) -> None:
    prompt = random_tokens(bundle, ROWS, 3)
    by_hand = SerialTarget(
        open_session(bundle.reference.path, SPEC, weights=bundle.weights),
        bundle.reference.contract,
        SPEC,
        context_length=None,
        max_queries=ROWS,
    )
    by_hand.start(ROWS)
    size = {"whole": ROWS, "chunks:12": 12, "one": 1}[prefill]
    for start in range(0, ROWS, size):
        last = by_hand.verify(prompt[start : start + size])[-1:].tobytes()
    wanted = [last, *(by_hand.cached(index).tobytes() for index in range(2 * len(bundle.reference.contract.kv)))]
    assert prompt_bytes(serial(bundle, prefill), bundle, prompt) == wanted


@pytest.mark.parametrize(
    ("prefill", "mask"), [("whole", 0), ("whole", 2), ("chunks:12", 2), ("one", 0), ("one", 2), ("one", 3)]
)
def test_a_block_target_reads_its_prompt_to_the_references_bytes(bundle: Bundle, prefill: str, mask: int) -> None:
    prompt = random_tokens(bundle, ROWS, 3)
    rows = prompt_rows(prefill, active=bool(mask & 1), max_queries=4)
    target = block_target(bundle, plan_of(bundle, phase_mask=mask), prefill_rows=rows)
    assert prompt_bytes(target, bundle, prompt) == prompt_bytes(serial(bundle, prefill), bundle, prompt)


def test_rows_taken_together_by_the_native_graph_are_not_the_rows_taken_alone(bundle: Bundle) -> None:
    """What a target under mask 2 would do if it took the prompt four rows a call: the mask bit matters."""
    prompt = random_tokens(bundle, ROWS, 3)
    target = block_target(bundle, plan_of(bundle, phase_mask=2), prefill_rows=4)
    assert prompt_bytes(target, bundle, prompt)[-1] != prompt_bytes(serial(bundle, "one"), bundle, prompt)[-1]


@pytest.mark.parametrize("prefill", ["chunks:12", "one"])
def test_continuation_behind_any_partition_is_serial(bundle: Bundle, prefill: str) -> None:
    mask = 3 if prefill == "one" else 2
    rows = prompt_rows(prefill, active=bool(mask & 1), max_queries=4)
    target = block_target(bundle, plan_of(bundle, phase_mask=mask), prefill_rows=rows)
    count = replayed(bundle, target, random_tokens(bundle, ROWS, 3), prefill=prefill)
    assert count.equal == count.rows > 0
    whole = replayed(bundle, target, random_tokens(bundle, ROWS, 3), prefill="whole")
    assert whole.equal < whole.rows


def test_every_call_of_a_prompt_is_in_the_prefill_stage(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    target = block_target(tiny_bundle, plan_of(tiny_bundle, phase_mask=3), prefill_rows=4)
    seen: list[tuple[int, Stage]] = []
    call = target._call
    monkeypatch.setattr(
        target, "_call", lambda tokens, *rest: (seen.append((len(tokens), target.guard.stage)), call(tokens, *rest))
    )
    target.start(20)
    target.prefill(random_tokens(tiny_bundle, 10))
    target.verify([1, 2])
    assert seen == [(4, Stage.PREFILL), (4, Stage.PREFILL), (2, Stage.PREFILL), (2, Stage.CONTINUATION)]
    assert target.length == 12
