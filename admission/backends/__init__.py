"""What a backend is known not to do: version-bound rules over declared descriptors, one backend a file.

A rule answers `false` with its evidence, or nothing; what no rule refutes is `unknown`. There is no third answer.
"""
