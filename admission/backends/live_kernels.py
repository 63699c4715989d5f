"""The kernels that the running ONNX Runtime registers, asked in a child process.

The question is `onnxruntime.capi._pybind_state.get_all_opkernel_def()`. Wheels of some providers crash in it (a
segmentation fault: onnxruntime-gpu on a machine without a GPU, onnxruntime-openvino 1.24.1), so it is never asked in
this process, and a crash says nothing about the kernels.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

from qbpass.admission.backends.kernel_table import KernelRow, KernelTable, Section
from qbpass.admission.backends.signatures import Formal

TIMEOUT_SECONDS = 120
MAX_ANSWER_BYTES = 64 * 2**20

_QUESTION = """
import json, sys
import onnxruntime
from onnxruntime.capi import _pybind_state as state
kernels = [
    (k.provider, k.domain, k.op_name, *k.version_range, {n: list(t) for n, t in k.type_constraints.items()})
    for k in state.get_all_opkernel_def()
]
newest = {}
for s in state.get_all_operator_schema():
    if s.since_version > newest.get((s.domain, s.name), (0,))[0]:
        newest[s.domain, s.name] = (s.since_version, [(f.name, f.typeStr) for f in s.inputs],
                                    [(f.name, f.typeStr) for f in s.outputs])
schemas = [(*key, *value[1:]) for key, value in newest.items()]
json.dump({"version": onnxruntime.__version__, "kernels": kernels, "schemas": schemas}, sys.stdout)
"""


def live_kernels(timeout: float = TIMEOUT_SECONDS, python: str = sys.executable) -> tuple[KernelTable | None, str]:
    """The table of the onnxruntime that `python` imports, or None; and where it is from, or why there is none.

    Never raises: what can't be asked is unknown.
    """
    try:
        # -P: a folder named onnxruntime in the current one is not the package.
        answer = subprocess.run([python, "-P", "-c", _QUESTION], capture_output=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"the running onnxruntime could not be asked for its kernels ({type(error).__name__})"
    if answer.returncode < 0:
        return None, f"the running onnxruntime crashed when asked for its kernels (signal {-answer.returncode})"
    if answer.returncode or len(answer.stdout) > MAX_ANSWER_BYTES:
        last = answer.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no answer"]
        return None, f"the running onnxruntime could not be asked for its kernels ({last[0][:160]})"
    try:
        found = json.loads(answer.stdout)
        table = _table(found)
    except (ValueError, KeyError, TypeError) as error:
        return None, f"the running onnxruntime's answer about its kernels can't be read ({type(error).__name__})"
    return table, f"{len(found['kernels']):,} kernels registered in the running onnxruntime {table.version}"


def _table(found: dict[str, Any]) -> KernelTable:
    source = f"onnxruntime {found['version']}, get_all_opkernel_def()"
    formals = {(domain, name): (_formals(ins), _formals(outs)) for domain, name, ins, outs in found["schemas"]}
    rows: dict[tuple[str, str], list[KernelRow]] = {}
    for provider, domain, name, start, end, types in found["kernels"]:
        ins, outs = formals.get((domain, name), ((), ()))
        allowed = {constraint: frozenset(names) for constraint, names in types.items()}
        row = KernelRow(name, start, end, allowed, "", None, ins, outs)
        row = replace(row, text=f"{name} {row.versions} {_shown(types)}".strip())
        rows.setdefault((provider, domain), []).append(row)
    ordered = {key: tuple(sorted(found, key=lambda r: (r.operator, r.start))) for key, found in rows.items()}
    return KernelTable(source, found["version"], {key: Section(*key, rows) for key, rows in ordered.items()})


def _formals(pairs: list[tuple[str, str]]) -> tuple[Formal, ...]:
    return tuple(Formal(name, parameter) for name, parameter in pairs)


def _shown(types: dict[str, list[str]]) -> str:
    return "; ".join(f"{constraint} = {', '.join(allowed)}" for constraint, allowed in sorted(types.items()))
