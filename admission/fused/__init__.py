"""Fused attention operators: one node that holds a whole attention. Read by their schemas, and refused by code."""

from qbpass.admission.fused.find import fused_attentions

__all__ = ["fused_attentions"]
