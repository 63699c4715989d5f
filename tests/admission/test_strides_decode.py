"""An attention's result is read back to its operands, or it is said why it is none. Elements are written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from site_graphs import Knobs, make_decoder

from qbpass.admission.admit import admit
from qbpass.admission.calls.call import Call
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides.decode import decode
from qbpass.admission.strides.elements import Elements, Ids, UntracedError
from qbpass.admission.strides.required import KEY, MASK, QUERY, VALUE, Reads, required_reads

CALL = Call(2, 1)
ROWS, KEYS, WIDTH = 2, 3, 2
MASK_SHAPE = (1, 1, ROWS, KEYS)


@pytest.fixture(scope="module")
def site() -> AttentionSite:
    """One head of two channels."""
    read = admit(make_decoder(Knobs())).sites[0].site
    assert read is not None
    return replace(read, heads=1, kv_heads=1, head_dim=WIDTH, value_dim=WIDTH)


class Attention:
    """The elements of a small attention, one step at a time."""

    def __init__(self) -> None:
        self.trace = Elements()
        self.q = self.trace.leaves(QUERY, np.arange(ROWS * WIDTH).reshape(1, ROWS, WIDTH))
        self.k = self.trace.leaves(KEY, np.arange(KEYS * WIDTH).reshape(1, KEYS, WIDTH))
        self.v = self.trace.leaves(VALUE, np.arange(KEYS * WIDTH).reshape(1, KEYS, WIDTH))
        self.mask = self.trace.leaves(MASK, np.arange(ROWS * KEYS).reshape(1, ROWS, KEYS))

    def scores(self) -> Ids:
        return self.trace.product(self.q, self.k.swapaxes(1, 2), 0.5)

    def masked(self) -> Ids:
        return self.trace.sum(self.scores(), self.mask)

    def weights(self) -> Ids:
        return self.trace.softmax(self.masked())

    def output(self, weights: Ids | None = None, values: Ids | None = None) -> Ids:
        weights = self.weights() if weights is None else weights
        return self.trace.product(weights, self.v if values is None else values, 1.0)

    def number(self, value: float) -> Ids:
        return self.trace.numbers(np.array(value))

    def read(self, site: AttentionSite, output: Ids) -> Reads:
        return decode(self.trace, output.reshape(1, 1, ROWS, WIDTH), site, CALL)


def same(found: Reads, required: Reads) -> bool:
    parts = ("query_HqnD", "key_HqnD", "mask_Hqn", "column_Hqn", "value_HqnV")
    return all(np.array_equal(getattr(found, part), getattr(required, part)) for part in parts)


def test_an_attention_is_read_back_to_every_element_of_its_operands(site: AttentionSite) -> None:
    a = Attention()
    found = a.read(site, a.output())
    assert same(found, required_reads(site, CALL, MASK_SHAPE, [KEYS, KEYS]))
    assert found.steps == {
        "query": ("",),
        "key": ("",),
        "score": ("product(alpha=0.5), + mask",),
        "weight": ("",),
        "value": ("",),
        "output": ("product(alpha=1.0)",),
    }


def test_a_row_whose_keys_are_clipped_is_read_as_far_as_it_goes_and_no_further(site: AttentionSite) -> None:
    """Row 0 makes its scores of two keys, row 1 of three: each alone."""
    a = Attention()
    parts = [a.output(a.trace.softmax(a.masked()[:, :1, :2]), a.v[:, :2]), a.output(a.weights()[:, 1:], a.v)]
    found = a.read(site, np.concatenate(parts, axis=1))
    assert same(found, required_reads(site, CALL, MASK_SHAPE, [2, 3], [2, 3]))
    assert not same(found, required_reads(site, CALL, MASK_SHAPE, [2, 3]))
    assert found.steps["score"] == ("product(alpha=0.5), + mask",)


def _guarded(a: Attention) -> Ids:
    weights = a.weights()
    return a.output(a.trace.choice(a.trace.step("IsNaN", weights), a.number(0.0), weights))


def _guarded_by_a_cast(a: Attention) -> Ids:
    weights = a.weights()
    tested = a.trace.step("IsNaN", a.trace.step("Cast to 10", weights))
    return a.output(a.trace.choice(tested, a.number(0.0), weights))


def _chosen(a: Attention) -> Ids:
    return a.output(a.trace.softmax(a.trace.choice(a.mask, a.scores(), a.number(-np.inf))))


def _chosen_otherwise(a: Attention) -> Ids:
    return a.output(a.trace.softmax(a.trace.choice(a.mask, a.number(-9.0), a.scores())))


def _mask_on_the_left(a: Attention) -> Ids:
    return a.output(a.trace.softmax(a.trace.sum(a.mask, a.trace.step("Mul", a.scores(), np.float32(2.0)))))


@pytest.mark.parametrize(
    ("build", "place", "steps"),
    [
        (_guarded, "weight", "where(NaN)(0.0)"),
        (_guarded_by_a_cast, "weight", "where(NaN of Cast to 10)(0.0)"),
        (_chosen, "score", "product(alpha=0.5), where(mask) no(-inf)"),
        (_chosen_otherwise, "score", "product(alpha=0.5), where(mask) yes(-9.0)"),
        (_mask_on_the_left, "score", "product(alpha=0.5), Mul(2.0), + mask"),
    ],
)
def test_operations_on_single_elements_move_nothing_and_are_kept_in_order(
    site: AttentionSite, build: Callable[[Attention], Ids], place: str, steps: str
) -> None:
    a = Attention()
    found = a.read(site, build(a))
    assert same(found, required_reads(site, CALL, MASK_SHAPE, [KEYS, KEYS]))
    assert found.steps[place] == (steps,)


def test_what_happens_to_a_mask_before_it_is_added_is_kept_too(site: AttentionSite) -> None:
    a = Attention()
    hidden = np.array([[[0.0, 0.0, -np.inf], [0.0, 0.0, 0.0]]])
    scores = a.trace.sum(a.scores(), a.trace.step("Add", a.mask, hidden))
    found = a.read(site, a.output(a.trace.softmax(scores)))
    assert found.steps["score"] == (
        "product(alpha=0.5), mask of Add(-inf), + mask",
        "product(alpha=0.5), mask of Add(0.0), + mask",
    )


def test_a_shorter_prefix_of_values_ends_the_row(site: AttentionSite) -> None:
    a = Attention()
    weights = a.weights()
    rows = [a.output(weights[:, j : j + 1, :end], a.v[:, :end]) for j, end in enumerate((2, 3))]
    found = a.read(site, np.concatenate(rows, axis=1))
    assert same(found, required_reads(site, CALL, MASK_SHAPE, [2, 3]))


def _channels_weighted_differently(a: Attention) -> Ids:
    weights = a.weights()
    parts = [a.output(w, a.v[:, :, c : c + 1]) for c, w in enumerate((weights, weights[:, ::-1]))]
    return np.concatenate(parts, axis=2)


def _two_softmaxes(a: Attention) -> Ids:
    parts = [a.weights()[:, :, :1], a.weights()[:, :, 1:]]
    return a.output(np.concatenate(parts, axis=2))


def _masked_twice(a: Attention) -> Ids:
    return a.output(a.trace.softmax(a.trace.sum(a.masked(), a.mask)))


def _two_scores(a: Attention) -> Ids:
    scores = a.scores()
    return a.output(a.trace.softmax(a.trace.sum(scores, scores)))


def _between_scores(a: Attention) -> Ids:
    return a.output(a.trace.softmax(a.trace.choice(a.mask, a.scores(), a.scores())))


def _guard_of_another(a: Attention) -> Ids:
    weights = a.weights()
    return a.output(a.trace.choice(a.trace.step("IsNaN", a.masked()), a.number(0.0), weights))


def _values_of_keys(a: Attention) -> Ids:
    return a.output(values=a.k)


def _unweighted(a: Attention) -> Ids:
    return a.output(a.masked())


def _no_product(a: Attention) -> Ids:
    return a.trace.sum(a.q, a.q)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (_channels_weighted_differently, "gives one row's channels different weights"),
        (_two_softmaxes, "weights one row's values by several softmaxes"),
        (_masked_twice, "masks the scores twice"),
        (_two_scores, "where mask is read"),
        (_between_scores, "chooses between two computed scores"),
        (_guard_of_another, "weights values by a choice, not by a softmax"),
        (_values_of_keys, "reads elements of key where value is read"),
        (_unweighted, "weights values by a sum, not by a softmax"),
        (_no_product, "computes the output by a sum, not by a product"),
    ],
)
def test_what_is_no_attention_is_said_to_be_none(
    site: AttentionSite, build: Callable[[Attention], Ids], reason: str
) -> None:
    a = Attention()
    with pytest.raises(UntracedError, match=reason):
        a.read(site, build(a))


def test_numbers_that_are_no_elements_are_not_read(site: AttentionSite) -> None:
    a = Attention()
    for wrong in (0, -3, 1 << 40):
        with pytest.raises(UntracedError, match="no elements of this call"):
            a.read(site, np.full((1, ROWS, WIDTH), wrong))
    with pytest.raises(UntracedError, match=r"has an output of shape \[1, 2\], not \[1, 1, 2, 2\]"):
        decode(a.trace, np.ones((1, 2), np.int64), site, CALL)
