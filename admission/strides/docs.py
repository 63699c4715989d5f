"""Writes docs/address-audit.md: `python -m qbpass.admission.strides.docs FILE`."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import fill

from qbpass.admission.strides.findings import CODES
from qbpass.admission.strides.node_kinds import CASTS, LAYOUT, UNARY

_INTRODUCTION = """# Address audit

Before a layout is tried on numbers, `qbpass rewrite` follows every element through each kind of attention: in the graph
as exported, and as emitted in a phase in which the layout is active and in one in which it is not. It is done twice.

- The algebra of views: every layout operation as a strided view of memory (shape, strides and offset in bytes), or a
  copy with its bytes. A view lies within its allocation, on whole elements, and does not overlap itself but where
  sharing is declared by a stride of zero. A view needs no copy; a kernel may make one all the same.
- The oracle: the same nodes run by ONNX's reference evaluator on index tensors, products and sums replaced by a record
  of what they read.

Both must agree, element by element, with each other and with the definition: query row j of head a reads Q row (a, j),
mask row j, all key rows of KV head a // group in order, and the value rows up to where the layout says that the row
ends; its result is put at (a, j); new rows are written behind the past ones. Scores go through the operations of the
exported graph, in their order. A mask's rows are run by themselves, in blocks and alone, with all tokens there and with
single ones padded away: each row must get the same mask, and see no key behind its own.

A fused operator that a rewrite keeps (a lowered site's native branch) must be the exported one: the same attributes,
the same operands but for keys and values, which come from qbpass's cache. Nobody sees into it: it is followed up to its
operands, and inside as admission spells it out.

A graph with a problem is refused, with one of the codes below. A code never changes its meaning. What an audit shows
is that addresses are right in tiny calls; how kernels round is left to the falsifier.
"""


def address_audit() -> str:
    """The page, in Markdown."""
    codes = [f"- `{code}`: {meaning}." for code, meaning in CODES.items()]
    traced = sorted({*LAYOUT, *UNARY, *CASTS, "MatMul", "FusedMatMul", "Add", "Sub", "Mul", "Div", "Softmax", "Where"})
    operators = f"These are followed: {', '.join(traced)}. A site with another one among its nodes is `UNTRACED`."
    return "\n".join([_INTRODUCTION, "## Codes\n", *codes, "", "## Operators\n", fill(operators, 118), ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(address_audit(), encoding="utf-8")
