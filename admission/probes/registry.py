"""Every probe, in the order in which they are run and shown."""

from __future__ import annotations

from qbpass.admission.probes.batch import BATCH
from qbpass.admission.probes.chain import CHAIN
from qbpass.admission.probes.coupling import COUPLING
from qbpass.admission.probes.forms import LOWERING, QUERIES_AS_BATCH, SHARED_KV
from qbpass.admission.probes.padding import PADDING
from qbpass.admission.probes.position import POSITION
from qbpass.admission.probes.rows import ROWS

PROBES = (ROWS, BATCH, POSITION, COUPLING, PADDING, CHAIN, QUERIES_AS_BATCH, SHARED_KV, LOWERING)
