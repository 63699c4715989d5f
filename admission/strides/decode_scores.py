"""From the scores that a softmax reads back to the products they are, and to the mask."""

from __future__ import annotations

import numpy as np

from qbpass.admission.strides.chains import Labels, labels_of, number_labels, one_label
from qbpass.admission.strides.elements import Choice, Ids, Leaf, Product, Record, Step, Sum, UntracedError
from qbpass.admission.strides.required import MASK, NOTHING
from qbpass.admission.strides.walk import Walk, described, read_leaves

MASK_ADDED = "+ mask"
MASK_CHOSEN = "where(mask)"


def walk_scores(walk: Walk, ids: Ids) -> tuple[Ids, Ids, Ids]:
    """(products, mask numbers, chains) of scores."""
    flat = ids.reshape(-1)
    products, mask, chain = np.zeros_like(flat), np.full_like(flat, NOTHING), np.zeros_like(flat)
    pending = [(np.arange(flat.size), flat)]
    while pending:
        places, current = pending.pop()
        for record, at, within in walk.elements.grouped(current):
            here = places[at]
            following, masks, labels = _one_back(walk, record, within)
            chain[here] = walk.chains.behind(chain[here], labels)
            if masks is not None:
                if np.any(mask[here] != NOTHING):
                    raise UntracedError("masks the scores twice")
                leaves, own = walk.peel(masks)
                mask[here] = read_leaves(walk.elements, leaves, MASK)
                if own.any():
                    chain[here] = walk.chains.behind(chain[here], walk.chains.labels(own, "mask"))
            if following is None:
                products[here] = current[at]
            else:
                pending.append((here, following))
    return products, mask, chain


def _one_back(walk: Walk, record: Record, within: Ids) -> tuple[Ids | None, Ids | None, Labels]:
    """(what a score was made from, None for a product; its mask; the operation's label for each element)."""
    if isinstance(record, Product):
        return None, None, one_label(f"product(alpha={record.alpha!r})", within.size)
    if isinstance(record, Step):
        return record.operands[within], None, labels_of(record, within)
    if isinstance(record, Sum):
        left, right = record.left[within], record.right[within]
        mask, scores = (left, right) if _is_mask(walk, left) else (right, left)
        return scores, mask, one_label(MASK_ADDED, within.size)
    if isinstance(record, Choice):
        guarded = walk.guard(record, within)
        if guarded is not None:
            return guarded
        return _chosen(walk, record, within)
    raise UntracedError(f"computes scores by {described(record)}")


def _chosen(walk: Walk, record: Choice, within: Ids) -> tuple[Ids, Ids, Labels]:
    """Where(mask, scores, number) or Where(mask, number, scores)."""
    sides = (("no", record.no[within], record.yes[within]), ("yes", record.yes[within], record.no[within]))
    for side, filler, scores in sides:
        values = walk.values(filler)
        if values is not None:
            return scores, record.condition[within], number_labels(f"{MASK_CHOSEN} {side}", values)
    raise UntracedError("chooses between two computed scores")


def _is_mask(walk: Walk, ids: Ids) -> bool:
    """Whether the first of `ids` comes from the mask: the other side of a sum is the scores."""
    found, _ = walk.peel(ids[:1])
    return all(isinstance(r, Leaf) and r.root == MASK for r, _, _ in walk.elements.grouped(found))
