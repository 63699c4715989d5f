"""Reads an attention's result back to its operands: which elements each (head, row) of the output was made of."""

from __future__ import annotations

import numpy as np

from qbpass.admission.calls.call import Call
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides.chains import one_label
from qbpass.admission.strides.decode_scores import walk_scores
from qbpass.admission.strides.elements import Elements, Flags, Ids, Product, Softmax, UntracedError
from qbpass.admission.strides.required import KEY, NOTHING, QUERY, VALUE, Reads
from qbpass.admission.strides.walk import Walk, described


def decode(elements: Elements, output: Ids, site: AttentionSite, call: Call) -> Reads:
    """What the output (1, H, q, dv) of a site was made of. Raises UntracedError where it is no attention."""
    wanted = (1, site.heads, call.queries, site.value_dim)
    if output.shape != wanted:
        raise UntracedError(f"has an output of shape {list(output.shape)}, not {list(wanted)}")
    return _Decoder(elements, call.extent).run(output[0])


class _Decoder:
    def __init__(self, elements: Elements, extent: int) -> None:
        self.walk, self.extent = Walk(elements), extent

    def run(self, output_HqV: Ids) -> Reads:
        mixed, output_steps = self.walk.peel(output_HqV)
        for record, places, _ in self.products(mixed, "the output"):
            label = one_label(f"product(alpha={record.alpha!r})", places.size)
            output_steps[places] = self.walk.chains.behind(output_steps[places], label)
        weights, values = self.contraction(mixed, "the output", self.extent)  # (H, q, dv, n), 0 behind a row's end
        if np.any(weights != weights[:, :, :1]):
            raise UntracedError("gives one row's channels different weights")
        read = weights[:, :, 0] > 0
        value, value_steps = self.walk.operand(values[weights > 0], VALUE)
        columns, scores, weight_steps = self.weights(weights[:, :, 0], read)
        scored = scores > 0  # a row's softmax may end before the last key
        products, mask, score_steps = walk_scores(self.walk, scores[scored])
        queries, keys = self.contraction(products, "the scores")
        query, query_steps = self.walk.operand(queries, QUERY)
        key, key_steps = self.walk.operand(keys, KEY)
        full_value = np.full(weights.shape, NOTHING, np.int64)
        full_value[weights > 0] = value
        steps = {
            "query": query_steps,
            "key": key_steps,
            "score": self.walk.chains.text(score_steps),
            "weight": weight_steps,
            "value": value_steps,
            "output": self.walk.chains.text(output_steps),
        }
        return Reads(
            query_HqnD=_placed(query, scored),
            key_HqnD=_placed(key, scored),
            mask_Hqn=_placed(mask, scored),
            column_Hqn=columns,
            value_HqnV=np.moveaxis(full_value, 2, 3),
            steps=steps,
        )

    def products(self, ids: Ids, what: str) -> list[tuple[Product, Ids, Ids]]:
        """As Elements.grouped has it. Raises UntracedError where one of the elements is no product."""
        found = []
        for record, places, within in self.walk.elements.grouped(ids.reshape(-1)):
            if not isinstance(record, Product):
                raise UntracedError(f"computes {what} by {described(record)}, not by a product")
            found.append((record, places, within))
        return found

    def contraction(self, ids: Ids, what: str, longest: int | None = None) -> tuple[Ids, Ids]:
        """Both operands of products, (.., K), 0 behind the end of shorter ones. K is `longest` where given."""
        products = self.products(ids, what)
        depths = {record.rows_BMK.shape[2] for record, _, _ in products}
        depth = max(depths, default=0) if longest is None else longest
        if any(one > depth for one in depths) or (longest is None and len(depths) > 1):
            raise UntracedError(f"computes {what} by sums of {sorted(depths)} terms")
        left, right = (np.zeros((ids.size, depth), np.int64) for _ in range(2))
        for record, places, within in products:
            rows, columns = record.operands(within)
            left[places, : rows.shape[1]], right[places, : rows.shape[1]] = rows, columns
        return left.reshape(*ids.shape, depth), right.reshape(*ids.shape, depth)

    def weights(self, weights_Hqn: Ids, read: Flags) -> tuple[Ids, Ids, tuple[str, ...]]:
        """(score column of each weight, the scores (H, q, n) of each row's softmax, steps behind the softmax).

        Scores are 0 behind the end of a softmax over fewer keys.
        """
        pairs = weights_Hqn.shape[:2]
        if not np.all(read[:, :, 0]):
            raise UntracedError("leaves rows without a value")
        columns = np.full(weights_Hqn.shape, NOTHING, np.int64)
        found, chain = self.walk.peel(weights_Hqn[read])
        column, owner = np.empty(found.size, np.int64), np.empty(found.size, np.int64)
        rows: list[Ids] = []
        first = 0
        for record, places, within in self.walk.elements.grouped(found):
            if not isinstance(record, Softmax):
                raise UntracedError(f"weights values by {described(record)}, not by a softmax")
            width = record.rows_RN.shape[1]
            if width > self.extent:
                raise UntracedError(f"has a softmax over {width} of {self.extent} keys")
            row, column[places] = np.divmod(within, width)
            owner[places] = first + row
            rows.append(np.pad(record.rows_RN, ((0, 0), (0, self.extent - width))))
            first += len(record.rows_RN)
        columns[read] = column
        owners = np.full(weights_Hqn.shape, NOTHING, np.int64)
        owners[read] = owner
        if np.any(read & (owners != owners[:, :, :1])):
            raise UntracedError("weights one row's values by several softmaxes")
        scores = np.concatenate(rows)[owners[:, :, 0].reshape(-1)]
        return columns, scores.reshape(*pairs, self.extent), self.walk.chains.text(chain)


def _placed(numbers: Ids, scored: Flags) -> Ids:
    """Numbers of scores, or of their operands, in the places of the scores; NOTHING in the others."""
    found = np.full((*scored.shape, *numbers.shape[1:]), NOTHING, np.int64)
    found[scored] = numbers
    return found
