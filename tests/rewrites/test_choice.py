"""`--layout auto` takes the cheapest layout of those not proven wrong, says why, and remembers it under the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from decoder_blocks import SPEC

from qbpass.models.loading import load_decoder
from qbpass.models.recipe import recipe_of
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.choice import INDIFFERENCE, Chosen, choose, decision_file
from qbpass.rewrites.plan import AnyLayout, RewritePlan
from qbpass.rewrites.refused import RewriteRefused
from qbpass.runtime.whole_trial import whole_trial

RATIOS: Mapping[AnyLayout, float] = {"qb": 0.9, "pq": 1.2, "gs": 3.0}


class World:
    """Plans of every layout but the refused ones, and what each costs; counts what is asked of it."""

    def __init__(self, ratios: Mapping[AnyLayout, float] = RATIOS, refused: tuple[AnyLayout, ...] = ()) -> None:
        self.ratios, self.refused = ratios, refused
        self.planned: list[AnyLayout] = []
        self.timed: list[AnyLayout] = []

    def plan(self, layout: AnyLayout) -> RewritePlan:
        self.planned.append(layout)
        if layout in self.refused:
            raise RewriteRefused(f"{layout} is false here")
        return RewritePlan(layout, 2, 4, ())

    def measure(self, plan: RewritePlan) -> Mapping[AnyLayout, float]:
        self.timed.append(plan.layout)
        return {plan.layout: self.ratios[plan.layout], "gs": self.ratios["gs"]}

    def choose(self, memory: Path | None = None) -> Chosen:
        return choose(self.plan, self.measure, memory)


@pytest.mark.parametrize(
    ("ratios", "refused", "wanted"),
    [
        ({"qb": 0.9, "pq": 1.2, "gs": 3.0}, (), "qb"),
        ({"qb": 1.3, "pq": 1.2, "gs": 3.0}, (), "pq"),
        ({"qb": 1.2 + INDIFFERENCE / 2, "pq": 1.2, "gs": 3.0}, (), "qb"),
        ({"qb": 5.0, "pq": 4.0, "gs": 3.0}, (), "gs"),
        ({"qb": 0.9, "pq": 1.2, "gs": 3.0}, ("qb",), "pq"),
        ({"qb": 0.9, "pq": 4.2, "gs": 3.0}, ("qb",), "gs"),
    ],
)
def test_the_cheapest_candidate_is_taken(
    ratios: Mapping[AnyLayout, float], refused: tuple[AnyLayout, ...], wanted: AnyLayout
) -> None:
    chosen = World(ratios, refused).choose()
    assert (chosen.plan.layout, chosen.choice.layout) == (wanted, wanted)


def test_a_refused_layout_is_never_timed_and_says_why() -> None:
    world = World(refused=("qb",))
    chosen = world.choose()
    assert world.timed == ["pq"]
    assert "  qb: qb is false here" in chosen.choice.lines()


def test_where_only_single_rows_are_left_the_refusal_is_raised() -> None:
    """GS is exact and pays nothing: a user who did not ask for it must read why nothing else is."""
    with pytest.raises(RewriteRefused, match="qb: qb is false here; pq: pq is false here"):
        World(refused=("qb", "pq")).choose()


def test_without_a_way_to_time_the_first_candidate_is_taken() -> None:
    chosen = choose(World(refused=("qb",)).plan, None, None)
    assert chosen.choice.layout == "pq"
    assert all(entry.ratio is None for entry in chosen.choice.candidates)


def test_a_decision_is_remembered_and_made_again_when_its_layout_is_refused(tmp_path: Path) -> None:
    memory = tmp_path / "choices" / "one.json"
    first = World().choose(memory)
    again = World()
    second = again.choose(memory)
    assert (again.planned, again.timed) == (["qb"], [])
    assert second.choice.remembered
    assert not first.choice.remembered
    assert World(refused=("qb",)).choose(memory).choice.layout == "pq"


def test_a_decision_is_made_again_when_asked_to(tmp_path: Path) -> None:
    memory = tmp_path / "one.json"
    World().choose(memory)
    world = World({"qb": 1.5, "pq": 1.2, "gs": 3.0})
    assert choose(world.plan, world.measure, memory, fresh=True).choice.layout == "pq"
    assert World().choose(memory).choice.layout == "pq"


@pytest.mark.parametrize("bytes_", [b"", b"{}", b"\xff\xfe", b'{"layout": "mq", "candidates": []}'])
def test_a_memory_that_cannot_be_read_is_made_again(tmp_path: Path, bytes_: bytes) -> None:
    memory = tmp_path / "one.json"
    memory.write_bytes(bytes_)
    assert not World().choose(memory).choice.remembered
    assert World().choose(memory).choice.remembered


def test_another_recipe_or_wish_is_another_decision(tiny_bundle: Bundle) -> None:
    recipe = recipe_of(tiny_bundle.reference, SPEC)
    asked = {"max_queries": 4}
    files = {
        decision_file(recipe, asked),
        decision_file(recipe, {"max_queries": 8}),
        decision_file(recipe.model_copy(update={"threads": 1}), asked),
    }
    assert len(files) == 3
    assert decision_file(recipe, dict(asked)) in files


def test_a_bundle_keeps_what_was_decided(tiny_eager: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QBPASS_CACHE", str(tmp_path / "cache"))
    decoder = load_decoder(tiny_eager)
    bundle, plan, _ = write_bundle(decoder, tmp_path / "bundle", "auto", SPEC, machine=partial(whole_trial, spec=SPEC))
    choice = bundle.manifest.choice
    assert choice is not None
    assert choice.layout == plan.layout == bundle.manifest.layout
    assert {entry.layout for entry in choice.candidates if entry.ratio is not None} == {"qb", "pq", "gs"}
