"""Operators outside attention whose rows depend on how many rows a call has: found by trial, run a row at a time."""
