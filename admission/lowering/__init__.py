"""Fused attention operators spelled out: products, mask, softmax. A reading of them, to be falsified by trials.

The paper: "A fused attention kernel may choose a different numerical and memory schedule" (section 3.3). That a kernel
computes what is spelled out here, bit for bit, is never assumed: rewrites/lowering tries it before a plan uses it.
"""

from qbpass.admission.lowering.lower import Lowered, lower, lowered_decoder

__all__ = ["Lowered", "lower", "lowered_decoder"]
