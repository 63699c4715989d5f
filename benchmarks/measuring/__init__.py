"""What the benchmark scripts share: interleaved timing, byte checks, options and output."""
