"""What a backend is known not to do: version-bound rules over declared descriptors, one backend a file.

A rule answers `false` with its evidence, or nothing; what no rule refutes is `unknown`. There is no third answer. The
names here are what a third party's backend is written with (docs/support-rules.md).
"""

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor, Operand
from qbpass.admission.backends.rule import Backend, Source, SupportRule, Target
from qbpass.admission.backends.versions import VersionRange

__all__ = ["Backend", "Descriptor", "FalseAnswer", "Operand", "Source", "SupportRule", "Target", "VersionRange"]
