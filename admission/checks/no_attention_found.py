"""What it does: reports a graph in which nothing looks like attention.

Why it matters: "all of no sites admitted" must not read as admitted.

Example: a recurrent model, or a graph without KV cache.
"""

from __future__ import annotations

from qbpass.admission.report import Diagnostic

CODE = "NO_ATTENTION_FOUND"


def refuse(model: str) -> Diagnostic:
    return Diagnostic(CODE, model, "no attention was found in this graph; is it a decoder with a KV cache?")
