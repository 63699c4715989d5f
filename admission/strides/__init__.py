"""Which element each operation of an attention reads, worked out twice and compared with what the definition asks.

`view.py` and `view_ops.py` are the algebra: memory as strided views. `algebra.py` traces a graph through it;
`oracle.py` runs the same graph on index tensors with ONNX's reference evaluator. Neither knows of the other, and
`required.py` knows of neither.
"""
