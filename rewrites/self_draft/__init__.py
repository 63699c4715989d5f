"""A draft from the decoder's own graph: one row a call, fused as far as other bits allow, weights quantized."""
