"""PQ on a fused operator: a chain of the operator itself, one query a link, over one shared cache."""
