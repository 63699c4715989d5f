"""The target's own weights, quantized, propose over the target's own KV cache."""
