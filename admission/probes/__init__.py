"""Numerical probes: what a kernel does to a row when the call around it changes. A probe can only prove a thing false.

Each kind of node that a graph really has becomes a small model of its own (cases), and each probe (one a file) runs it
in two geometries whose bytes would be equal if the kernel did not care. A difference is `false`, kept as a witness that
can be replayed; no difference is `unknown`, with the number of trials.
"""
