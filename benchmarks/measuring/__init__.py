"""What the benchmark scripts share: byte checks, options and output."""
