"""Fused attention that is lowered to primitives: what stays of the fused node, and the trials that may falsify it."""
