"""Which attention sites of a decoder may be rewritten, and why not the others.

`admit` and `discover` share their names with the modules they live in. Bound here, eagerly, each name is the function
whatever is imported first; resolved lazily it would be the module as soon as someone had imported that.
"""

from qbpass.admission.admit import admit
from qbpass.admission.discover import discover

__all__ = ["admit", "discover"]
