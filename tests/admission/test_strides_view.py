"""The algebra of views against numpy's own strided arrays, which know nothing of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from qbpass.admission.strides import view_ops
from qbpass.admission.strides.view import Allocation, View

MEMORY = np.arange(4096, dtype=np.int32)
ITEM = MEMORY.itemsize
HELD = Allocation("memory", MEMORY.nbytes, 64)

EXTENTS = st.lists(st.integers(0, 4), max_size=4)


def numpy_view(view: View) -> np.ndarray[Any, Any]:
    """The same view of MEMORY, made by numpy."""
    return as_strided(MEMORY[view.offset // ITEM :], view.shape, view.strides, writeable=False)


def elements(view: View) -> np.ndarray[Any, Any]:
    """What the view reads of MEMORY by its own addresses. MEMORY holds its own indices."""
    return view.addresses() // ITEM


@st.composite
def views(draw: st.DrawFn) -> View:
    """Views that lie in MEMORY: gaps, reversed axes, shared axes, overlaps."""
    shape = tuple(draw(EXTENTS))
    strides = tuple(draw(st.sampled_from((-24, -8, -4, -1, 0, 1, 2, 4, 6, 24))) * ITEM for _ in shape)
    return View(shape, strides, 2000 * ITEM, ITEM, HELD)


@st.composite
def contiguous_views(draw: st.DrawFn) -> View:
    """A contiguous tensor under up to three layout operations: what a graph makes."""
    view: View = View.contiguous("memory", tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))), ITEM)
    for _ in range(draw(st.integers(0, 3))):
        view = draw(st.sampled_from((transposed, sliced, expanded)))(draw, view)
    return view


def transposed(draw: st.DrawFn, view: View) -> View:
    return view_ops.transpose(view, draw(st.permutations(range(len(view.shape)))))


def sliced(draw: st.DrawFn, view: View) -> View:
    axis = draw(st.integers(0, len(view.shape) - 1))
    step = draw(st.sampled_from((-2, -1, 1, 2)))
    return view_ops.take(view, *([value] for value in (draw(BOUND), draw(BOUND), axis, step)))


def expanded(draw: st.DrawFn, view: View) -> View:
    if len(view.shape) > 4:
        return view
    wide = view_ops.unsqueeze(view, [draw(st.integers(0, len(view.shape)))])
    return view_ops.expand(wide, [3 if extent == 1 else extent for extent in wide.shape])


BOUND = st.one_of(st.integers(-6, 6), st.sampled_from((-(2**63), 2**63 - 1)))


@given(views())
def test_addresses_are_those_numpy_reads(view: View) -> None:
    assert elements(view).tolist() == numpy_view(view).tolist()


@given(views())
def test_bounds_are_the_first_and_the_last_byte_that_is_read(view: View) -> None:
    assume(view.size)
    low, high = np.lib.array_utils.byte_bounds(numpy_view(view))
    start = MEMORY.__array_interface__["data"][0]
    assert view.bounds == (low - start, high - start)


@given(views())
def test_contiguity_is_numpys(view: View) -> None:
    assert view.is_contiguous == numpy_view(view).flags.c_contiguous


@given(views())
def test_a_view_overlaps_itself_where_two_indices_apart_from_sharing_have_one_address(view: View) -> None:
    own = elements(view)[tuple(0 if axis in view.shared else slice(None) for axis in range(len(view.shape)))]
    assert view.overlaps == (len(np.unique(own)) != own.size)


def test_elements_that_share_some_bytes_overlap() -> None:
    straddling = View((3,), (2,), 0, 4, HELD)
    assert straddling.overlaps
    assert not straddling.elements_aligned
    assert not View((3,), (4,), 0, 4, HELD).overlaps


def test_interleaved_axes_that_never_meet_do_not_overlap() -> None:
    """Strides 2 and 3 elements: the nested rule can't tell, the addresses can."""
    assert not View((2, 2), (2 * ITEM, 3 * ITEM), 0, ITEM, HELD).overlaps
    assert View((4, 3), (2 * ITEM, 3 * ITEM), 0, ITEM, HELD).overlaps


@pytest.mark.parametrize(
    ("view", "within"),
    [
        (View((4, 4), (16, 4), 0, 4, Allocation("m", 64)), True),
        (View((4, 4), (16, 4), 4, 4, Allocation("m", 64)), False),
        (View((4,), (-4,), 12, 4, Allocation("m", 16)), True),
        (View((4,), (-4,), 8, 4, Allocation("m", 16)), False),
        (View((1000,), (0,), 12, 4, Allocation("m", 16)), True),
        (View((0, 7), (4, 4), 1 << 40, 4, Allocation("m", 16)), True),
    ],
)
def test_a_view_lies_within_its_allocation_or_not(view: View, within: bool) -> None:
    assert view.within_allocation == within


def test_alignment_is_what_every_address_is_a_multiple_of() -> None:
    rows = View.contiguous("m", (4, 64), 4, alignment=64)
    assert (rows.alignment, rows.row_alignment, rows.elements_aligned) == (4, 64, True)
    odd = View((4, 5), (20, 4), 0, 4, Allocation("m", 80, 64))
    assert odd.row_alignment == 4
    assert not View((4,), (4,), 2, 4, Allocation("m", 64, 64)).elements_aligned
    assert View((4,), (4,), 16, 4, Allocation("m", 64, 64)).row_alignment == 16


@given(contiguous_views(), st.data())
def test_reshape_is_a_view_exactly_where_numpy_needs_no_copy(view: View, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(_shapes_of(view.size)))
    array = numpy_view(view)
    wanted = array.reshape(shape)
    found = view_ops.reshape(view, shape)
    assert (found is not None) == (view.size == 0 or np.shares_memory(wanted, MEMORY))
    if found is not None:
        assert found.shape == wanted.shape
        assert elements(found).tolist() == wanted.tolist()
        if view.size:
            walked = found.walked
            assert [found.strides[axis] for axis in walked] == [wanted.strides[axis] for axis in walked]


def _shapes_of(size: int) -> list[tuple[int, ...]]:
    """Every shape of up to four axes with that many elements, among small extents."""
    if size == 0:
        return [(0,), (2, 0, 3), (0, 0)]
    found = [(size,), (1, size), (size, 1)]
    for first in range(1, size + 1):
        if size % first == 0:
            rest = size // first
            found += [(first, rest), (first, 1, rest)]
            found += [(first, second, rest // second) for second in range(2, rest + 1) if rest % second == 0]
    return found


def test_a_repeated_head_can_be_viewed_and_can_not_be_merged_without_a_copy() -> None:
    """repeat_kv: Expand shares, and the Reshape behind it is where the bytes are written."""
    kv = View.contiguous("kv", (1, 2, 5, 8), 4)
    shared = view_ops.expand(view_ops.unsqueeze(kv, [2]), [1, 2, 3, 5, 8])
    assert shared.shared == (2,)
    assert shared.nbytes == 3 * kv.nbytes
    assert view_ops.reshape(shared, [1, 6, 5, 8]) is None
    assert view_ops.reshape(view_ops.expand(view_ops.unsqueeze(kv, [1]), [1, 3, 2, 5, 8]), [3, 2, 5, 8]) is not None


def test_sizes_that_do_not_fit_are_an_error() -> None:
    view = View.contiguous("m", (2, 3), 4)
    for wrong in (
        lambda: view_ops.reshape(view, [5]),
        lambda: view_ops.expand(view, [4, 3]),
        lambda: view_ops.transpose(view, [0, 0]),
        lambda: view_ops.squeeze(view, [0]),
        lambda: view_ops.split(view, 1, [1, 1]),
        lambda: view_ops.gather(view, np.array(2), 0),
    ):
        with pytest.raises(ValueError, match=r"."):
            wrong()


@given(contiguous_views(), st.data())
def test_transpose_is_numpys(view: View, data: st.DataObject) -> None:
    perm = data.draw(st.permutations(range(len(view.shape))))
    found, wanted = view_ops.transpose(view, perm), numpy_view(view).transpose(perm)
    assert (found.shape, found.strides) == (wanted.shape, wanted.strides)


@given(contiguous_views(), st.data())
def test_unsqueeze_and_squeeze_move_nothing(view: View, data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.integers(0, len(view.shape) + 1), min_size=2, max_size=2, unique=True))
    wide = view_ops.unsqueeze(view, axes)
    wanted = np.expand_dims(numpy_view(view), tuple(axes))
    assert wide.shape == wanted.shape
    assert elements(wide).tolist() == wanted.tolist()
    assert view_ops.squeeze(wide, axes) == view
    assert view_ops.squeeze(wide).shape == wanted.squeeze().shape


@given(contiguous_views(), st.data())
def test_slices_are_numpys_whatever_the_bounds(view: View, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(view.shape) - 1))
    start, end, step = data.draw(BOUND), data.draw(BOUND), data.draw(st.sampled_from((-3, -2, -1, 1, 2, 3)))
    found = view_ops.take(view, [start], [end], [axis], [step])
    wanted = numpy_view(view)[(slice(None),) * axis + (slice(start, end, step),)]
    assert elements(found).tolist() == wanted.tolist()
    assert found.within_allocation


@given(contiguous_views(), st.data())
def test_expand_is_numpys_broadcast(view: View, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.sampled_from((1, extent, 3 if extent == 1 else extent))) for extent in view.shape)
    shape = data.draw(st.sampled_from((shape, (2, *shape), shape[1:])))
    array = numpy_view(view)
    wanted = np.broadcast_to(array, np.broadcast_shapes(array.shape, shape))
    found = view_ops.expand(view, shape)
    assert found.shape == wanted.shape
    assert elements(found).tolist() == wanted.tolist()
    assert all(
        found.strides[axis] == 0 for axis in range(len(shape)) if wanted.strides[axis] == 0 < wanted.shape[axis] - 1
    )


@given(contiguous_views(), st.data())
def test_split_gives_numpys_parts(view: View, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(view.shape) - 1))
    cut = data.draw(st.integers(0, view.shape[axis]))
    found = view_ops.split(view, axis, [cut, view.shape[axis] - cut])
    wanted = np.split(numpy_view(view), [cut], axis=axis)
    assert [elements(part).tolist() for part in found] == [part.tolist() for part in wanted]


@given(contiguous_views(), st.data())
def test_gather_is_a_view_for_evenly_spaced_rows_only(view: View, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(view.shape) - 1))
    assume(view.shape[axis])
    rows = st.integers(-view.shape[axis], view.shape[axis] - 1)
    indices = np.array(data.draw(st.one_of(rows, st.lists(rows, max_size=4))), np.int64)
    found = view_ops.gather(view, indices, axis)
    wanted = np.take(numpy_view(view), indices, axis=axis)
    steps = set(np.diff(indices % view.shape[axis]).tolist()) if indices.ndim else set()
    assert (found is not None) == (len(steps) <= 1)
    if found is not None:
        assert found.shape == wanted.shape
        assert elements(found).tolist() == wanted.tolist()


@given(contiguous_views(), st.data())
def test_flatten_is_a_reshape_to_two_axes(view: View, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(view.shape)))
    shape = (math.prod(view.shape[:axis]), math.prod(view.shape[axis:]))
    assert view_ops.flatten(view, axis) == view_ops.reshape(view, shape)
