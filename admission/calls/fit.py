"""Sizes seen in several calls, as sums in the decoder's own terms: `queries`, `past` and a constant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

from qbpass.admission.calls.call import CALLS
from qbpass.admission.extents import ONE, PAST, QUERIES, Extent


def fit_extent(sizes: Sequence[int | None], symbols: Mapping[str, Sequence[int]] | None = None) -> Extent | None:
    """The sum a*queries + b*past + c that gives these sizes in CALLS, with whole a, b, c; None where there is none.

    symbols: sizes in CALLS of the symbols that no such sum explains; one of them stands for itself.
    """
    known = [size for size in sizes if size is not None]
    if len(known) != len(CALLS):
        return None
    if len(set(known)) == 1:
        return Extent.constant(known[0])
    first, second, third = CALLS[:3]
    # Differences to the first call leave a 2 x 2 system in a and b.
    rows = [(call.queries - first.queries, call.past - first.past) for call in (second, third)]
    right = [known[1] - known[0], known[2] - known[0]]
    determinant = rows[0][0] * rows[1][1] - rows[0][1] * rows[1][0]
    a = Fraction(right[0] * rows[1][1] - right[1] * rows[0][1], determinant)
    b = Fraction(rows[0][0] * right[1] - rows[1][0] * right[0], determinant)
    extent = Extent.of(queries=int(a), past=int(b), **{"1": known[0] - int(a) * first.queries - int(b) * first.past})
    fits = all(extent.at(call.queries, call.past) == size for call, size in zip(CALLS, known, strict=True))
    if fits:
        return extent
    named = next((name for name, of_name in (symbols or {}).items() if list(of_name) == known), None)
    return None if named is None else Extent.sum(Counter({_symbol(named): 1}))


def _symbol(name: str) -> str:
    """A graph may call anything `queries` or `past`; what no sum explains is neither."""
    return repr(name) if name in (QUERIES, PAST, ONE) else name
