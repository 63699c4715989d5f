"""What it does: refuses a term added to the scores that is no mask of zeros and large negative numbers.

Why it matters: a bias with values of its own (slopes, learned tables, relative positions) enters the sums; a layout
that moves queries would have to move it along, and no layout has been proven to.

Example: ALiBi: `slope[h] * (key - query)` added to the scores, or given to a fused operator as `attention_bias`.
"""

from __future__ import annotations

from qbpass.admission.dataflow import node_name
from qbpass.admission.mask_flow import bias_source
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "BIAS_NOT_MASK"


def check(subject: Subject) -> Diagnostic | None:
    for term in subject.added_terms:
        source = bias_source(term, subject.flow)
        if source is not None:
            node = subject.flow.producer(source)
            evidence = {"term": term, "source": source, "operator": node.op_type if node else "graph input or weight"}
            evidence["node"] = node_name(node) if node else ""
            return subject.refuse(CODE, f"{term!r} is added to the scores and is not a mask of 0 and -inf", **evidence)
    return None
