"""The parts of benchmarks/cuda.py."""
