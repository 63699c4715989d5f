"""One guarded graph holds two layouts and the native one over one copy of the weights, and each gives its own bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decoder_blocks import SPEC, plan_of, replayed

from qbpass.models.errors import ContractError
from qbpass.models.session import open_session
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.guard import SECOND_LAYOUT
from qbpass.rewrites.phases import Phase
from qbpass.runtime.block_target import BlockTarget

EVERY_ROW = 13 * (1 + 2 + 3 + 4)


@pytest.fixture(scope="module")
def target(tiny_bundle: Bundle) -> BlockTarget:
    """QB, with PQ beside it."""
    plan = plan_of(tiny_bundle)
    model = rewrite_graph(tiny_bundle.reference, plan, beside=plan_of(tiny_bundle, "pq"))
    session = open_session(model.SerializeToString(), SPEC, weights=tiny_bundle.weights)
    return BlockTarget.of_plan(session, tiny_bundle.reference, plan, SPEC)


def test_either_layouts_rows_are_the_serial_ones_and_native_rows_are_not(
    tiny_bundle: Bundle, target: BlockTarget
) -> None:
    counts = [replayed(tiny_bundle, each) for each in (target, target.second(SPEC), target.native(SPEC))]
    assert [count.equal == count.rows == EVERY_ROW for count in counts] == [True, True, False]


def test_the_phase_says_which_layout_runs(tiny_bundle: Bundle) -> None:
    """Each site's products are found in the branch that the phase selects, and only there."""
    plan, beside = plan_of(tiny_bundle), plan_of(tiny_bundle, "pq", phase_mask=8)
    model = rewrite_graph(tiny_bundle.reference, plan, beside=beside)
    table = next(t for t in model.graph.initializer if list(t.dims) == [2 * SECOND_LAYOUT])
    values = list(table.int64_data) or list(memoryview(table.raw_data).cast("q"))
    assert [at for at, value in enumerate(values) if value == 1] == [int(Phase.TARGET_CONTINUATION)]
    assert [at for at, value in enumerate(values) if value == 2] == [SECOND_LAYOUT + int(Phase.DRAFT_CONTINUATION)]


def test_weights_are_there_once(tiny_bundle: Bundle) -> None:
    plan = plan_of(tiny_bundle)
    both = rewrite_graph(tiny_bundle.reference, plan, beside=plan_of(tiny_bundle, "pq"))
    names = [tensor.name for tensor in both.graph.initializer if tensor.external_data]
    assert sorted(names) == sorted(t.name for t in tiny_bundle.reference.model.graph.initializer if t.external_data)


@pytest.mark.parametrize("change", [{"head": "all"}, {"max_queries": 3}, {"sites": ()}])
def test_layouts_that_differ_in_more_than_their_forms_are_not_put_together(
    tiny_bundle: Bundle, change: dict[str, object]
) -> None:
    plan = replace(plan_of(tiny_bundle), head="asked")
    beside = replace(plan_of(tiny_bundle, "pq"), **{"head": "asked", **change})  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="only their forms differ"):
        rewrite_graph(tiny_bundle.reference, plan, beside=beside)
